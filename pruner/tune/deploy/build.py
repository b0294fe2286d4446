"""Build a library of a lowered network and records, in a worker."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from pruner.archives import write_arrays
from pruner.errors import DataError, PrunerError, lines_of
from pruner.files import as_written, digest_of, read_json, temporaries_in, write_json
from pruner.processes import Worker, ask, preload
from pruner.signing import is_own, signature
from pruner.tune.compare.runners import AGAIN, Eager, OnnxReference, OnnxRuntime, save_outputs
from pruner.tune.compiling import foreign_triple, link, pass_context, written_out
from pruner.tune.cuda import provide_compiler
from pruner.tune.deploy.apply_records import Applied, apply_records, check_tasks, keys_of
from pruner.tune.deploy.built_files import BUILT_FILE, LIBRARY, TEMPORARY, WORK
from pruner.tune.deploy.interface import Interface, with_interface
from pruner.tune.kinds import CUDA, is_cuda
from pruner.tune.measure.numerics import Kind, other_inputs
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks import host_memory
from pruner.tune.networks.draft_network import DRAFTING
from pruner.tune.networks.extraction import TASKS, software
from pruner.tune.networks.extraction import write_tasks as write_tasks  # of `network_worker`
from pruner.tune.networks.onnx_import import multiplies_integers
from pruner.tune.networks.plain import with_tensors
from pruner.tune.networks.request import (
    LOWERED,
    REQUEST,
    NetworkRequest,
    is_kept,
    read_lowered,
)
from pruner.tune.networks.rewrites.operators import functions_of
from pruner.tune.networks.signature import last_scales
from pruner.tune.networks.source import NetworkSource, example_of, inputs_of
from pruner.tune.networks.variants.choosing import write_variants as write_variants  # also
from pruner.tune.phases import counted
from pruner.tune.run.database import RECORDS, WORKLOADS
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import flops

INPUTS, EXPECTED = "inputs.npz", "expected.npz"
logger = logging.getLogger(__name__)
_FEWEST = 4  # functions that are worth further processes
_LIMIT_S, _EACH_BYTES = 3600.0, 1e9  # of a compiling process


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The library, its schedules, and the seconds of each step of its build."""

    library: Path
    applied: Applied
    size_bytes: int
    seconds: Mapping[str, float]
    interface: Interface
    notes: Sequence[str] = field(default_factory=list)


def network_worker() -> Worker:
    """Start a worker that imports, lowers and builds a network, with TVM and torch."""
    preload(*DRAFTING)  # commands that build may draft, too, from the same server
    worker = Worker(__name__, starts_processes=True)
    worker.start()
    return worker


def ready() -> None:
    """Import TVM and torch in the worker."""
    load_tvm()
    importlib.import_module("torch")


def build_network(
    folder: Path,
    sources: Mapping[str, Path],
    library: Path,
    log: Path,
    *,
    reference: bool = True,
    threads: int = 1,
    cuda_graph: bool = False,
    worker: Worker | None = None,
) -> Built:
    """Build the network of a run folder in a worker; see :func:`build_here`.

    ``cuda_graph``: the first call captures the kernels of the network, except those that read its
    inputs or write its outputs, and later calls launch them together (``RewriteCUDAGraph``).
    ``worker``: of :func:`network_worker`, by default a new one. Raises `PrunerError`: the network
    differs from the tuned network, records were not applied, or are of another target.
    """
    job = (folder, sources, library, reference, threads, cuda_graph)
    return ask(__name__, build_here.__name__, *job, log_file=log, worker=worker)


def build_here(
    folder: Path,
    sources: Mapping[str, Path],
    library: Path,
    reference: bool,
    threads: int,
    cuda_graph: bool = False,
) -> Built:
    """Build the library of a run's network from its tasks' records.

    An earlier library from equal parts is taken. ``sources`` are databases by name, in order of
    precedence. ``reference``: also write inputs and the outputs that torch (onnxruntime for an ONNX
    file) has for them, into the folder of the library. Raises `PrunerError`: see
    :func:`build_network`.
    """
    request = NetworkRequest.read(folder / REQUEST)
    library.parent.mkdir(parents=True, exist_ok=True)
    made_from = _made_from(folder, request, sources, threads, cuda_graph)
    built = _earlier(folder, library, made_from)
    if built is None:
        # first: it must never describe another library
        library.with_name(BUILT_FILE).unlink(missing_ok=True)
        built = _new(folder, request, sources, library, threads, cuda_graph)
        if made_from is not None:
            signed = signature(_text(made_from, library))
            content = {**asdict(built), "library": "", "signed": signed}
            write_json(library.with_name(BUILT_FILE), content, indent=1)
    if not reference:
        return built
    seconds = dict(built.seconds)
    with counted(seconds, "reference"):
        notes = _reference(request.source, library.parent, threads, built.interface)
    notes = [*notes, *built.notes]
    return replace(built, notes=notes, seconds=seconds)


def _new(
    folder: Path,
    request: NetworkRequest,
    sources: Mapping[str, Path],
    library: Path,
    threads: int,
    cuda_graph: bool,
) -> Built:
    """Apply the records and compile."""
    seconds: dict[str, float] = {}
    with temporaries_in(library.parent / TEMPORARY):
        with counted(seconds, "import"):
            module, target = read_lowered(folder), request.tvm_target()
            wanted = {row["name"]: row["key"] for row in read_json(folder / TASKS, list)}
            # records apply by structural hash: a changed function would silently stay without its
            # schedule
            check_tasks(keys_of(module), wanted)
        with counted(seconds, "apply"):
            by_rules = target.kind.name != "llvm"
            module, applied = apply_records(module, target, sources, by_rules=by_rules)
        with closing(FunctionBuilds(target, library.parent / TEMPORARY)) as builds:
            with counted(seconds, "build"):
                interface = Interface.of(module, target, threads)
                whole = with_interface(module, interface)
                executable = compiled(whole, target, builds, cuda_graph=cuda_graph)
            with counted(seconds, "export"):
                unfinished = library.with_name(f".{library.name}")  # the suffix is the format
                link(executable, target, unfinished, objects=builds.objects)
                unfinished.replace(library)
    return Built(
        library=library,
        applied=applied,
        size_bytes=library.stat().st_size,
        seconds=seconds,
        interface=interface,
    )


def _made_from(
    folder: Path,
    request: NetworkRequest,
    sources: Mapping[str, Path],
    threads: int,
    cuda_graph: bool,
) -> str | None:
    """Compute a digest of a library's parts; None if the network is imported anew."""
    if not is_kept(folder / LOWERED, request.source):
        return None
    lowered = (folder / LOWERED).stat()
    places = [folder / REQUEST, folder / TASKS]
    places += [place / name for place in sources.values() for name in (RECORDS, WORKLOADS)]
    parts = [software(), threads, cuda_graph, *sources, lowered.st_mtime_ns, lowered.st_size]
    parts += [(path.name, digest_of([path]) if path.is_file() else None) for path in places]
    return sha256(json.dumps(parts).encode()).hexdigest()


def _earlier(folder: Path, library: Path, made_from: str | None) -> Built | None:
    """Return an earlier library from equal parts, unchanged since; else None."""
    kept = library.with_name(BUILT_FILE)
    if made_from is None or not kept.is_file():
        return None
    try:
        with as_written(kept):
            found = read_json(kept, dict)
            signed = found.pop("signed")
            interface = Interface.of_json(found["interface"])
            parts = {"applied": Applied(**found["applied"]), "interface": interface}
            parts["notes"] = ["an earlier command built this library from the same results"]
            # a checked library was moved to its place in the run folder
            places = [library, *([folder / LIBRARY] if library.parent == folder / WORK else [])]
            for path in places:
                if path.is_file() and is_own(_text(made_from, path), signed):
                    return Built(**{**found, **parts, "library": path})
    except DataError as error:
        logger.warning("%s; the library is built again", error)
    return None


def _text(made_from: str, library: Path) -> str:
    return f"{made_from} {digest_of([library])}"


def compiled(
    module: Any, target: Any, builds: FunctionBuilds | None = None, *, cuda_graph: bool = False
) -> Any:
    """Compile a lowered and scheduled module to TVM's executable.

    It is not lowered again: that would change the functions. Functions that ``builds`` takes are to
    be linked. Raises `PrunerError`: TVM cannot build it, in one line.
    """
    tvm, relax = load_tvm().tvm, load_tvm().relax
    backend = CUDA if is_cuda(target) else "cpu_generic"
    if is_cuda(target):
        provide_compiler()
    steps = importlib.import_module(f"tvm.relax.backend.{backend}.pipeline")
    # without legalize_passes of the default pipeline: the module is lowered already
    passes = steps.dataflow_lower_passes(target) + steps.finalize_passes(target)
    if builds is not None:
        passes.append(tvm.transform.module_pass(lambda last, _: builds.take(last), opt_level=0))
    try:
        with target, pass_context(module, target, cuda_graph=cuda_graph):
            written = written_out(module, target)
            return relax.build(written, target, relax_pipeline=tvm.transform.Sequential(passes))
    except Exception as error:  # compilers raise kinds of their own
        raise _not_built(error) from error


def _reference(
    source: NetworkSource, folder: Path, threads: int, interface: Interface
) -> list[str]:
    """Write inputs and expected outputs; of a moved file keep earlier outputs."""
    if source.path is None or source.path.is_file():
        return write_reference(source, folder, threads)
    if (folder / EXPECTED).is_file():
        return [f"{source.path} was moved: compared with its outputs of an earlier build"]
    write_arrays(folder / INPUTS, *seeded([(one.shape, one.dtype) for one in interface.inputs]))
    return [f"outputs are not checked: {source.path} was moved"]


def _reference_runner(source: NetworkSource, given: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a runner that can run the network, or None and the reason.

    ONNX's own evaluator takes the place of onnxruntime where that is not installed, or lacks an
    operator or a type.
    """
    runners: list[Callable[..., Any]] = [Eager]
    if source.path is not None and source.is_onnx:
        runners = [partial(OnnxRuntime, optimized=False), OnnxReference]
        # onnxruntime's sums of 8-bit products overflow on CPUs without instructions for them
        if multiplies_integers(source.path):
            runners.reverse()
    reasons = []
    for make in runners:
        try:
            return make(**given), ""
        except Exception as error:  # onnxruntime raises kinds of its own
            if not source.is_onnx and not isinstance(error, ImportError):
                raise
            reasons.append(lines_of(error)[0])
    return None, "; ".join(reasons)


def write_reference(
    source: NetworkSource, folder: Path, threads: int, kind: Kind = "signed"
) -> list[str]:
    """Write inputs and expected outputs of two calls; return lines about missing outputs.

    The second call has other inputs, unless the network fails or has no finite outputs for these.
    ``kind``: of the inputs of an ONNX file. If an output has only NaN for inputs of both signs, the
    inputs are positive.
    """
    inputs, expected, arrays = folder / INPUTS, folder / EXPECTED, inputs_of(source, kind)
    write_arrays(inputs, *arrays)
    for earlier in (folder / AGAIN, expected):
        earlier.unlink(missing_ok=True)
    given: dict[str, Any] = {"source": asdict(source), "inputs": str(inputs), "threads": threads}
    runner, reason = _reference_runner(source, given)
    if runner is None:
        return [f"outputs are not checked: {reason}"]
    write_arrays(folder / AGAIN, *other_inputs(arrays))
    try:
        save_outputs(runner, inputs, expected)
        reason = "" if _stays_finite(expected) else "more of its outputs are not finite"
    except Exception as error:  # of any kind: indices that must not be exchanged, for example
        reason = lines_of(error)[0]
    if source.is_onnx and kind == "signed" and not _has_numbers(expected):
        return write_reference(source, folder, threads, "positive")
    if not reason:
        return []
    write_arrays(folder / AGAIN, *arrays)
    save_outputs(runner, inputs, expected)
    return [f"both compared calls have the same inputs; with others: {reason}"]


def _has_numbers(expected: Path) -> bool:
    """Check that no output is nothing but NaN, as logarithms of negative inputs are."""
    if not expected.is_file():
        return True
    with np.load(expected) as found:
        arrays = [found[name] for name in found.files]
    return not any(a.dtype.kind == "f" and a.size and np.isnan(a).all() for a in arrays)


def _stays_finite(expected: Path) -> bool:
    """Check that the second call has no more infinite or undefined values."""
    with np.load(expected) as found:
        count = {name: int((~np.isfinite(found[name])).sum()) for name in found.files}
    firsts = (name for name in count if name.startswith("arr_"))
    return all(count[name.replace("arr", "again")] <= count[name] for name in firsts)


def scales_of(source: NetworkSource, inputs: Path) -> list[float]:
    """Return `last_scales` of a network for stored inputs."""
    module, arguments = example_of(source)
    with np.load(inputs) as arrays:
        tensors = [importlib.import_module("torch").from_numpy(arrays[n]) for n in arrays.files]
    return last_scales(module, with_tensors(arguments, tensors))


class FunctionBuilds:
    """The functions of a network, which several processes compile into ``folder``.

    LLVM takes most of the time of a build. Forked processes share the scheduled functions. Each
    process, also this one, takes the next function that no other has taken, and writes an object
    file, which is linked with the rest. It must be closed.
    """

    def __init__(self, target: Any, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._taken: list[Any] = []  # a module of one function each, the longest first
        self._workers: list[Worker] = []

    def take(self, module: Any) -> Any:
        """Take functions of a module for the processes; return the rest.

        The module is complete: these functions become names of compiled functions there.
        """
        tvm, relax = load_tvm().tvm, load_tvm().relax
        every, cores = list(functions_of(module).items()), len(os.sched_getaffinity(0))
        process = multiprocessing.current_process()
        if len(every) < _FEWEST or cores < 2 or process.daemon:  # which may start no process
            return module
        if self._target.kind.name != "llvm" or foreign_triple(self._target):
            return module
        alone = {name: tvm.IRModule({name: one}, attrs=module.attrs) for name, one in every}
        *taken, _ = sorted(alone, key=lambda name: -_size(alone[name]))  # TVM's rest needs one
        self._taken = [alone[name] for name in taken]
        rest = module.clone()
        for name in taken:
            rest[name] = relax.ExternFunc(str(module[name].attrs["global_symbol"]))
        gc.collect()  # garbage, too, would be frozen
        gc.freeze()  # a collection in a forked process would copy what it visits
        most = min(cores, len(taken), host_memory.free_bytes() / _EACH_BYTES)
        for _ in range(int(most) - 1):
            worker = Worker(self, method="fork", timeout_s=_LIMIT_S)
            try:
                worker.send(self.compile.__name__)
            except OSError as error:  # no memory for a process, for example
                worker.stop()
                logger.warning("fewer processes compile: %s", error)
                break
            self._workers.append(worker)
        gc.unfreeze()
        return rest

    def compile(self) -> None:
        """Compile the functions that no process has taken."""
        for number in range(len(self._taken)):
            # a lock would stay locked if its process were killed
            with suppress(FileExistsError):
                self._path(number).with_suffix(".taken").touch(exist_ok=False)
                self._compile(number)

    def _compile(self, number: int) -> None:
        alone, path = self._taken[number], self._path(number)
        with self._target, pass_context(alone, self._target):
            # as relax.build compiles the others
            built = load_tvm().tvm.tirx.build(alone, self._target, pipeline="default")
        unfinished = path.with_suffix(f".unfinished{path.suffix}")
        built.write_to_file(str(unfinished))
        unfinished.replace(path)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.o"

    def objects(self) -> list[str]:
        """Compile until all object files exist; return their paths.

        Raises `PrunerError`: TVM cannot compile the functions, in one line.
        """
        try:
            self.compile()
            for worker in self._workers:
                reply = worker.receive()
                if reply.error is not None:  # the process was ended, for example
                    logger.warning("a process failed (%s): this one compiles", reply.line)
            for number in range(len(self._taken)):
                if not self._path(number).is_file():
                    self._compile(number)
        except Exception as error:  # compilers raise kinds of their own
            raise _not_built(error) from error
        return [str(self._path(number)) for number in range(len(self._taken))]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.stop()


def _size(module: Any) -> float:
    try:
        return flops(module)
    except Exception:  # TVM counts no operations of some statements
        return 0.0


def _not_built(error: Exception) -> PrunerError:
    return PrunerError(f"the network could not be built: {lines_of(error)[-1]}")
