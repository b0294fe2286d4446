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
from pruner.tune.compare.jobs import JOBS
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.source import NetworkSource

CPU = "cpu"
OURS, EAGER, COMPILE, AUTOTUNE = "ours", "eager", "compile", "autotune"
ONNXRUNTIME, UNTUNED, DRAFT = "onnxruntime", "untuned", "draft"


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
    """A baseline that a worker (:mod:`pruner.tune.compare.jobs`) loads and runs.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A runner of a network's source, with the packages that it needs.

    ``packages`` must be installed, ``extra`` installs them. ``from_onnx``: it can run a network
    that is an ONNX file. ``of_networks_on_gpu``: arguments there instead. ``tunes``: see
    :class:`Baseline`.
    """

    label: str
    runner: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    of_networks_on_gpu: Mapping[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = ()
    extra: str = ""
    from_onnx: bool = False
    tunes: bool = False

    @property
    def missing(self) -> str | None:
        """Name the packages that are not installed, None where all are."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if not absent:
            return None
        return f"{', '.join(absent)} not installed; run: pip install 'pruner[{self.extra}]'"


# freezing makes weights constants, as in our library
_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True, "freezing": True}
_GRAPH = {"triton.cudagraphs": True}
_KINDS = {
    EAGER: _Kind(label="torch eager", runner="Eager"),
    COMPILE: _Kind(
        label="torch.compile",
        runner="Compiled",
        arguments={"options": {}},
        # torch's mode "reduce-overhead": one launch of a captured graph, which saves most of a
        # small network's time. An operator has inputs alone, which torch copies for each launch.
        of_networks_on_gpu={"options": _GRAPH},
        tunes=True,
    ),
    AUTOTUNE: _Kind(
        label="torch.compile, max-autotune and frozen",
        runner="Compiled",
        arguments={"options": _AUTOTUNE},
        of_networks_on_gpu={"options": {**_AUTOTUNE, **_GRAPH}},  # as torch's mode of that name
        tunes=True,
    ),
    ONNXRUNTIME: _Kind(
        label="onnxruntime",
        runner="OnnxRuntime",
        packages=("onnx", "onnxruntime", "onnxscript"),
        extra="network",
        from_onnx=True,
    ),
}
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
    """Check the names of baselines.

    Raises:
        PrunerError: an unknown name.
    """
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PrunerError(f"baselines={unknown}: unknown; known: {', '.join(known)}")


def by_default() -> list[str]:
    """List the baselines to time where none is named.

    Their packages are installed. The autotuned baseline takes minutes: it must be named.
    """
    usual = (name for name in BASELINES if name != AUTOTUNE)
    return [name for name in usual if name not in _KINDS or _KINDS[name].missing is None]


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

    Raises:
        PrunerError: a name that is unknown.
    """
    check_names(name for name in names if name not in libraries)
    given = {"source": asdict(source), "half": half and resources.device != CPU}
    missing = "an ONNX file holds no torch module" if source.is_onnx else None
    # on CPUs without the compiler, as deployed; TVM 0.27 loads its CUDA runtime only with it
    alone = {"TVM_USE_RUNTIME_LIB": "1"} if resources.device == CPU else {}
    return [
        *(
            _of_kind(name, given, inputs, resources, missing, network=True)
            for name in _KINDS
            if name in names
        ),
        *(
            _of_library(name, library, "TvmLibrary", {}, inputs, resources, alone)
            for name, library in libraries.items()
        ),
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
    `output` the shape and dtype of the last argument.

    Raises:
        PrunerError: a name that is unknown.
    """
    check_names(names, FOR_KERNELS)
    known = spec is not None and find_operator(spec["operator"]).torch is not None
    missing = None if known else "torch has no equivalent of this program"
    given = {"source": dict(spec or {})}
    return [
        *(
            _of_kind(name, given, inputs, resources, missing, network=False)
            for name in FOR_KERNELS
            if name in names
        ),
        *(
            _of_library(name, library, "KernelLibrary", {"output": output}, inputs, resources)
            for name, library in libraries.items()
        ),
    ]


def _of_kind(
    name: str,
    given: Mapping[str, Any],
    inputs: Path,
    resources: Resources,
    missing: str | None,
    *,
    network: bool,
) -> Baseline:
    kind = _KINDS[name]
    arguments = {**given, "inputs": str(inputs), "device": resources.device, **kind.arguments}
    if network and resources.device != CPU:
        arguments |= kind.of_networks_on_gpu
    return Baseline(
        name=name,
        label=kind.label,
        runner=kind.runner,
        arguments=arguments,
        threads=resources.threads,
        missing=kind.missing or (None if kind.from_onnx else missing),
        tunes=kind.tunes,
    )


def _of_library(
    name: str,
    library: Library,
    runner: str,
    given: Mapping[str, Any],
    inputs: Path,
    resources: Resources,
    environment: Mapping[str, str] | None = None,
) -> Baseline:
    arguments = {"library": str(library.path), "inputs": str(inputs), "device": resources.device}
    return Baseline(
        name=name,
        label=library.label,
        runner=runner,
        arguments={**arguments, **given},
        threads=resources.threads,
        environment=environment or {},
        missing=library.missing,
        facts=library.facts,
    )
