"""One library out of a network and the records of its tasks, in a child process.

Beside the library it can leave inputs and what torch computes from them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import temporaries_in
from pruner.processes import Worker, ask
from pruner.tune.compiling import pass_context, written_out
from pruner.tune.contenders.inputs import inputs_of, save_arrays
from pruner.tune.contenders.runners import Eager, OnnxRuntime
from pruner.tune.cuda import provide_compiler
from pruner.tune.deploy.apply import Applied, apply_records, check_tasks, keys_of
from pruner.tune.deploy.files import TEMPORARY
from pruner.tune.deploy.interface import with_interface
from pruner.tune.kinds import CUDA, is_cuda
from pruner.tune.networks.request import REQUEST, NetworkRequest, lowered_network
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.tasks import NetworkTask
from pruner.tune.phases import Stopwatch
from pruner.tune.tvm_import import load_tvm

INPUTS, EXPECTED = "inputs.npz", "expected.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What is built of which network, from which records.

    ``network`` is the file of a :class:`NetworkRequest`, ``tasks`` names the keys that its
    functions must have, ``sources`` are databases by name, the first one first. ``reference``:
    also write inputs and the outputs that torch (onnxruntime for an ONNX file) has for them, into
    the folder of the library.
    """

    network: str
    tasks: Mapping[str, str]
    sources: Mapping[str, str]
    library: str
    reference: bool = True
    threads: int = 1

    @staticmethod
    def of_run(
        folder: Path,
        tasks: Sequence[NetworkTask],
        sources: Mapping[str, str],
        library: Path,
        **rest: Any,
    ) -> BuildRequest:
        """To build the network of a run folder, whose tasks are known."""
        return BuildRequest(
            network=str(folder / REQUEST),
            tasks={task.name: task.key for task in tasks},
            sources=sources,
            library=str(library),
            **rest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The library, what is in it, and the seconds that each step took."""

    library: Path
    applied: Applied
    size_bytes: int
    seconds: Mapping[str, float]
    notes: Sequence[str] = field(default_factory=list)


def build_network(request: BuildRequest, log: Path, child: Worker | None = None) -> Built:
    """Build in a child process whose output goes to `log`.

    ``child``: a process that runs already and has a job :func:`build_library`.

    Raises:
        PrunerError: the network is not the one that was tuned, records were not applied, or are of
            another target; in one line.
    """
    built: Built = ask(__name__, build_library.__name__, request, log=log, worker=child)
    return built


def build_here(request: BuildRequest, lowered: Any | None = None) -> Built:
    """Build in this process. Raises like :func:`build_network`.

    ``lowered``: the network as it was lowered for its tasks; None: it is imported and lowered.
    """
    library, watch, notes = Path(request.library), Stopwatch(), list[str]()
    network = NetworkRequest.read(Path(request.network))
    library.parent.mkdir(parents=True, exist_ok=True)
    with watch.time("import"):
        module, target = lowered, network.tvm_target()
        if module is None:
            module = lowered_network(network)
        check_tasks(keys_of(module), request.tasks)
    with watch.time("apply"):
        sources = {name: Path(folder) for name, folder in request.sources.items()}
        by_rules = target.kind.name != "llvm"
        module, applied = apply_records(module, target, sources, by_rules=by_rules)
    with watch.time("build"):
        executable = compiled(with_interface(module, target, request.threads), target)
    with watch.time("export"):
        partial = library.with_name(f".{library.name}")  # whose suffix says the format
        executable.export_library(str(partial))
        partial.replace(library)
    if request.reference:
        with watch.time("reference"):
            notes += write_reference(network.source, library.parent, request.threads)
    return Built(
        library=library,
        applied=applied,
        size_bytes=library.stat().st_size,
        seconds=watch.seconds,
        notes=notes,
    )


def build_library(request: BuildRequest, lowered: Any | None = None) -> Built:
    """In the child: :func:`build_here`, with the temporary files beside the library."""
    with temporaries_in(Path(request.library).parent / TEMPORARY):
        return build_here(request, lowered)


def compiled(module: Any, target: Any) -> Any:
    """TVM's executable of a lowered module whose functions are scheduled; lowered no second time.

    Raises:
        PrunerError: TVM cannot build it, in one line.
    """
    tvm, relax = load_tvm().tvm, importlib.import_module("tvm.relax")
    backend = CUDA if is_cuda(target) else "cpu_generic"
    if is_cuda(target):
        provide_compiler()
    steps = importlib.import_module(f"tvm.relax.backend.{backend}.pipeline")
    passes = steps.dataflow_lower_passes(target) + steps.finalize_passes(target)
    try:
        with target, pass_context(module, target):
            written = written_out(module, target)
            return relax.build(written, target, relax_pipeline=tvm.transform.Sequential(passes))
    except Exception as error:  # compilers raise kinds of their own
        lines = str(error).strip().splitlines() or [repr(error)]
        raise PrunerError(f"the network could not be built: {lines[-1]}") from error


def write_reference(source: NetworkSource, folder: Path, threads: int) -> list[str]:
    """Write inputs and expected outputs; lines that say why there are none."""
    inputs = folder / INPUTS
    save_arrays(inputs, inputs_of(source))
    given: dict[str, Any] = {"source": asdict(source), "inputs": str(inputs), "threads": threads}
    try:
        runner = OnnxRuntime(**given) if source.is_onnx else Eager(**given)
    except ImportError as error:
        return [f"outputs are not checked: {error}"]
    save_arrays(folder / EXPECTED, runner.outputs(runner.run()))
    return []
