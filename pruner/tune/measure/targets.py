"""CPU targets of an x86-64 machine, distinct in instructions and cores."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pruner.errors import PrunerError


class CpuTarget(NamedTuple):
    """A code generation target, and the number of cores for programs."""

    platform: str
    processor: str  # LLVM's name
    cores: int
    vector_bytes: int
    cpu_flags: tuple[str, ...]  # of /proc/cpuinfo, needed to run what the target generates


# from narrow to wide vectors: `local_platform` takes the last that fits
CPU_TARGETS: tuple[CpuTarget, ...] = (
    CpuTarget("cpu-sse4", "nehalem", 1, 16, ("sse4_2",)),
    CpuTarget("cpu-avx2", "haswell", 2, 32, ("avx2", "fma")),
    CpuTarget(
        "cpu-avx512", "skylake-avx512", 2, 64, ("avx512f", "avx512dq", "avx512bw", "avx512vl")
    ),
)

# LLVM's names of the vector instructions that it writes for loops. Linux lists each of them; newer
# ones, such as those for matrices, it does not list on every machine that has them.
_VECTORS = {
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
}  # fmt: skip


def missing_flags(target: CpuTarget, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets that a target needs and this machine lacks."""
    present = _flags(cpuinfo)
    return [flag for flag in target.cpu_flags if flag not in present]


def vectors_of(features: Iterable[str]) -> list[str]:
    """Select the vector instruction sets among LLVM's `features`."""
    return sorted(_VECTORS & set(map(str, features)))


def hidden_vectors(features: Iterable[str], cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the vector instruction sets of LLVM's `features` that are hidden here."""
    present = _flags(cpuinfo)
    return sorted(_VECTORS & set(features) - present) if present else []


def widest_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return LLVM's name of the widest described processor that this machine can run."""
    found = _widest(cpuinfo)
    return "x86-64" if found is None else found.processor


def _widest(cpuinfo: Path) -> CpuTarget | None:
    fitting = (target for target in reversed(CPU_TARGETS) if not missing_flags(target, cpuinfo))
    return next(fitting, None)


def local_platform() -> str:
    """Choose the widest described CPU for this machine; raise `PrunerError` if none fits."""
    found = _widest(Path("/proc/cpuinfo"))
    if found is not None:
        return found.platform
    known = ", ".join(target.platform for target in CPU_TARGETS)
    raise PrunerError(f"this CPU has the instructions of none of {known}; name a platform=")


def reference_target(
    dtypes: Iterable[str], cpuinfo: Path = Path("/proc/cpuinfo")
) -> dict[str, Any]:
    """Choose the target of reference programs: any x86-64, without contraction.

    Halves are converted by F16C where it is there, five times as fast and by the same rounding.
    """
    # without -mcpu LLVM emits no fused multiply-add, whose single rounding would change the results
    halves = "float16" in dtypes and "f16c" in _flags(cpuinfo)
    return {"kind": "llvm", **({"mattr": ["+f16c"]} if halves else {})}


def _flags(cpuinfo: Path) -> set[str]:
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return set(lines[0].split(":", 1)[1].split()) if lines else set()
