"""Which contenders a network has: what others offer for it, and libraries of TVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.contenders.lane import CPU, Lane
from pruner.tune.contenders.race import Contender
from pruner.tune.networks.source import NetworkSource

OURS, EAGER, COMPILE, AUTOTUNE = "ours", "eager", "compile", "autotune"
ONNXRUNTIME, UNTUNED, DRAFT = "onnxruntime", "untuned", "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A runner of the network's source; ``packages`` must be there, ``extra`` installs them.

    ``from_onnx``: it can run a network that is an ONNX file. ``on_gpu``: arguments there instead.
    ``tunes``: see :class:`~pruner.tune.contenders.race.Contender`.
    """

    label: str
    runner: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    on_gpu: Mapping[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = ()
    extra: str = ""
    from_onnx: bool = False
    tunes: bool = False

    @property
    def missing(self) -> str | None:
        """Which packages are not installed, None where all are."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if not absent:
            return None
        return f"{', '.join(absent)} not installed; run: pip install 'pruner[{self.extra}]'"


_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True, "freezing": True}
_KINDS = {
    EAGER: _Kind(label="torch eager", runner="Eager"),
    COMPILE: _Kind(label="torch.compile", runner="Compiled", arguments={"options": {}}, tunes=True),
    AUTOTUNE: _Kind(
        label="torch.compile, max-autotune and frozen",
        runner="Compiled",
        arguments={"options": _AUTOTUNE},
        # torch's mode of that name launches a captured graph, which spares it most of a small
        # network's time
        on_gpu={"options": {**_AUTOTUNE, "triton.cudagraphs": True}},
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
BESIDE = (*_KINDS, UNTUNED, DRAFT)  # whom `pruner deploy` sets beside the tuned network
FOR_KERNELS = (EAGER, COMPILE, AUTOTUNE)  # and beside the kernel of an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A network that TVM compiled; ``missing`` says why there is none.

    ``facts`` are what it took to make it.
    """

    label: str
    path: Path | None = None
    missing: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def check_names(names: Iterable[str], known: Sequence[str] = BESIDE) -> None:
    """Raise `PrunerError` for a name that is no contender's."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PrunerError(f"beside={unknown}: unknown; known: {', '.join(known)}")


def installed() -> list[str]:
    """Contenders whose packages are here."""
    return [name for name in BESIDE if name not in _KINDS or _KINDS[name].missing is None]


def line_up(
    source: NetworkSource,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    *,
    inputs: Path,
    lane: Lane,
    half: bool = False,
) -> list[Contender]:
    """The contenders, all on the same inputs, on one device and with as many threads.

    `libraries` are the network's by name: ``ours``, ``untuned``, ``draft``, or that of another run.
    ``half``: on a GPU torch and onnxruntime have weights and inputs of float16, as users would.

    Raises:
        PrunerError: a name that is unknown.
    """
    check_names(name for name in names if name not in libraries)
    given: dict[str, Any] = {"source": asdict(source), "inputs": str(inputs)}
    given |= {"device": lane.device, "half": half and lane.device != CPU}
    no_module = "an ONNX file holds no torch module" if source.is_onnx else None
    out = [
        _of_kind(name, given, lane, None if kind.from_onnx else no_module)
        for name, kind in _KINDS.items()
        if name in names
    ]
    for name, library in libraries.items():
        arguments = {"library": str(library.path), "inputs": str(inputs), "device": lane.device}
        # as it is deployed, without the compiler; with it alone TVM 0.27 loads its CUDA runtime
        alone = {"TVM_USE_RUNTIME_LIB": "1"} if lane.device == CPU else {}
        contender = _of_library(name, library, "TvmLibrary", arguments, lane)
        out.append(replace(contender, environment=alone, facts=library.facts))
    return out


def line_up_kernels(
    spec: Mapping[str, Any] | None,
    names: Sequence[str],
    libraries: Mapping[str, Library],
    *,
    inputs: Path,
    output: tuple[tuple[int, ...], str],
    lane: Lane,
) -> list[Contender]:
    """The same of one operator: torch by the names, and kernels of its, by name.

    `spec` are the options of a named operator, None for a program of the user's, which torch does
    not know; `output` the shape and dtype of the last argument.

    Raises:
        PrunerError: a name that is unknown.
    """
    check_names(names, FOR_KERNELS)
    given = {"source": dict(spec or {}), "inputs": str(inputs), "device": lane.device}
    unknown = "torch has no equivalent of this program" if spec is None else None
    out = [_of_kind(name, given, lane, unknown) for name in FOR_KERNELS if name in names]
    places = {"inputs": str(inputs), "output": output, "device": lane.device}
    for name, library in libraries.items():
        arguments = {"library": str(library.path), **places}
        out.append(_of_library(name, library, "KernelLibrary", arguments, lane))
    return out


def _of_kind(
    name: str, given: Mapping[str, Any], lane: Lane, missing: str | None = None
) -> Contender:
    kind = _KINDS[name]
    arguments = {**given, **kind.arguments, **({} if lane.device == CPU else kind.on_gpu)}
    return Contender(
        name=name,
        label=kind.label,
        runner=kind.runner,
        arguments=arguments,
        threads=lane.threads,
        missing=kind.missing or missing,
        tunes=kind.tunes,
    )


def _of_library(
    name: str, library: Library, runner: str, arguments: Mapping[str, Any], lane: Lane
) -> Contender:
    return Contender(
        name=name,
        label=library.label,
        runner=runner,
        arguments=arguments,
        threads=lane.threads,
        missing=library.missing,
    )
