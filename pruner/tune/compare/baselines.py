"""The baselines of a network or operator, with common device and cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.program.dag.operators import find_operator
from pruner.tune.compare.runners import JOBS
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.source import NetworkSource

CPU = "cpu"
OURS, EAGER, COMPILE, AUTOTUNE = "ours", "eager", "compile", "autotune"
ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
UNTUNED, DRAFT = "untuned", "draft"
_TUNES = "Compiled"  # the runner that times programs of its own while it is prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A device, ``cpu`` or ``cuda``, and the number of CPU cores."""

    threads: int
    device: str = CPU

    @staticmethod
    def of(platform: Platform) -> Resources:
        """Choose a platform's cores, or beside a GPU all of this process.

        On a GPU the cores only launch kernels, and compilers use them before anything is timed.
        """
        on_cpu = platform.device == CPU
        threads = platform.cores if on_cpu else len(os.sched_getaffinity(0))
        return Resources(threads=threads, device=platform.device)

    def __str__(self) -> str:
        """Format the lane for people."""
        return f"{self.threads} threads" if self.device == CPU else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline that a worker (:mod:`pruner.tune.compare.runners`) loads and runs.

    ``name`` is for options and files, ``label`` for people. ``missing``: why it cannot run here,
    known before it is started. ``facts`` are added to those of its runner. ``tunes``: it times
    programs of its own while it is prepared, so nothing else may run then.
    """

    name: str
    label: str
    runner: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    jobs: str = JOBS
    missing: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    tunes: bool = False


# freezing makes weights constants, as in our library
_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True, "freezing": True}
_GRAPH = {"triton.cudagraphs": True}
# By name: the label, the class of `runners`, its arguments, and those of networks on a GPU.
_KINDS: Mapping[str, tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = {
    EAGER: ("torch eager", "Eager", {}, {}),
    # On GPUs as torch's mode "reduce-overhead": one launch of a captured graph, which saves most of
    # a small network's time. An operator has inputs alone, which torch copies for each launch.
    COMPILE: ("torch.compile", _TUNES, {"options": {}}, {"options": _GRAPH}),
    AUTOTUNE: (
        "torch.compile, max-autotune and frozen",
        _TUNES,
        {"options": _AUTOTUNE},
        {"options": {**_AUTOTUNE, **_GRAPH}},  # as torch's mode of that name
    ),
    ONNXRUNTIME: ("onnxruntime", "OnnxRuntime", {}, {}),
    OPENVINO: ("OpenVINO", "OpenVino", {}, {}),
}
_OF_ONNX = {  # the packages that they need, and the extra that has them
    ONNXRUNTIME: (("onnx", "onnxruntime", "onnxscript"), "network"),
    OPENVINO: (("onnx", "onnxscript", "openvino"), "network,openvino"),
}
_BY_NAME = (AUTOTUNE, OPENVINO, DRAFT)  # not by default
BASELINES = (*_KINDS, UNTUNED, DRAFT)  # `pruner deploy` times these beside the tuned network
FOR_KERNELS = (EAGER, COMPILE, AUTOTUNE)  # and beside the kernel of an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A network that TVM compiled, or the reason why it is ``missing``.

    ``facts`` are the seconds of its construction.
    """

    label: str
    path: Path | None = None
    missing: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def check_names(names: Iterable[str], known: Sequence[str] = BASELINES) -> None:
    """Check the names of baselines; raise `PrunerError` for an unknown name."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PrunerError(f"baselines={unknown}: unknown; known: {', '.join(known)}")


def by_default() -> list[str]:
    """List the baselines to time where none is named.

    Their packages are installed. The autotuned baseline and the drafted network take minutes.
    """
    return [name for name in BASELINES if name not in _BY_NAME and _lacking(name) is None]


def _lacking(name: str) -> str | None:
    """Name the packages of a baseline that are not installed, None where all are."""
    packages, extra = _OF_ONNX.get(name, ((), ""))
    absent = [package for package in packages if find_spec(package) is None]
    if not absent:
        return None
    return f"{', '.join(absent)} not installed; run: pip install 'pruner[{extra}]'"


def network_baselines(
    source: NetworkSource,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    *,
    inputs: Path,
    resources: Resources,
    half: bool = False,
) -> list[Baseline]:
    """List the baselines of a network, on equal inputs, device and threads.

    `libraries` are the network's by name: ``ours``, ``untuned``, ``draft``, or that of another run.
    ``half``: on a GPU torch and onnxruntime have weights and inputs of float16, as users would.
    Raises `PrunerError`: a name that is unknown.
    """
    check_names(name for name in names if name not in libraries)
    on_cpu, shared = resources.device == CPU, {"inputs": str(inputs), "device": resources.device}
    given = {"source": asdict(source), "half": half and not on_cpu, **shared}
    missing = "an ONNX file holds no torch module" if source.is_onnx else None
    # on CPUs without the compiler, as deployed; TVM 0.27 loads its CUDA runtime only with it
    alone = {"TVM_USE_RUNTIME_LIB": "1"} if on_cpu else {}
    return [
        *_of_frameworks(names, given, resources, missing, captured=not on_cpu),
        *_of_libraries(libraries, "TvmLibrary", shared, resources, alone),
    ]


def kernel_baselines(
    spec: Mapping[str, Any] | None,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    *,
    inputs: Path,
    output: tuple[tuple[int, ...], str],
    resources: Resources,
) -> list[Baseline]:
    """List the baselines of an operator, and kernels by name.

    `spec` are the options of a named operator, None for a program of the user's, which torch lacks;
    `output` the shape and dtype of the last argument. Raises `PrunerError`: a name that is unknown.
    """
    check_names(names, FOR_KERNELS)
    known = spec is not None and find_operator(spec["operator"]).torch is not None
    missing = None if known else "torch has no equivalent of this program"
    shared = {"inputs": str(inputs), "device": resources.device}
    given = {"source": dict(spec or {}), **shared}
    return [
        *_of_frameworks(names, given, resources, missing, captured=False),
        *_of_libraries(libraries, "KernelLibrary", {"output": output, **shared}, resources, {}),
    ]


def _of_frameworks(
    names: Sequence[str],
    given: Mapping[str, Any],
    resources: Resources,
    missing: str | None,
    *,
    captured: bool,
) -> list[Baseline]:
    only_cpu = None if resources.device == CPU else f"OpenVINO does not run on {resources.device}"
    return [
        Baseline(
            name=name,
            label=label,
            runner=runner,
            arguments={**given, **arguments, **(on_gpu if captured else {})},
            threads=resources.threads,
            missing=_lacking(name)
            or (only_cpu if name == OPENVINO else None)
            or (None if name in _OF_ONNX else missing),
            tunes=runner == _TUNES,
        )
        for name, (label, runner, arguments, on_gpu) in _KINDS.items()
        if name in names
    ]


def _of_libraries(
    libraries: Mapping[str, Library],
    runner: str,
    given: Mapping[str, Any],
    resources: Resources,
    environment: Mapping[str, str],
) -> list[Baseline]:
    return [
        Baseline(
            name=name,
            label=library.label,
            runner=runner,
            arguments={"library": str(library.path), **given},
            threads=resources.threads,
            environment=environment,
            missing=library.missing,
            facts=library.facts,
        )
        for name, library in libraries.items()
    ]
