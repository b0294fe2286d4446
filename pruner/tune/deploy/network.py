"""Deploy the tuned network of a run folder: draft, build, check, time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import DataError, PrunerError
from pruner.files import write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import Worker, ask
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import OURS, Library, Resources, network_baselines
from pruner.tune.compare.benchmark import (
    SHORT_BENCHMARK,
    BenchmarkSettings,
    run_interleaved,
    timings,
    worst_output,
)
from pruner.tune.deploy import build
from pruner.tune.deploy.apply_records import recorded_keys
from pruner.tune.deploy.build import EXPECTED, INPUTS, Built, build_network
from pruner.tune.deploy.built_files import (
    BUILT_FILE,
    DEPLOY_FILE,
    LIBRARY,
    LOADER,
    LOG,
    WORK,
    remove_built,
)
from pruner.tune.deploy.interface import Interface, names_of
from pruner.tune.kinds import is_cuda
from pruner.tune.measure.machine import missing_device
from pruner.tune.measure.measurer import Platform
from pruner.tune.measure.numerics import QUANTISED, TOLERANCE
from pruner.tune.networks import draft_network
from pruner.tune.networks.draft_task import is_view
from pruner.tune.networks.extraction import TASKS, read_tasks
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.networks.request import LOWERED, REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource
from pruner.tune.phases import counted
from pruner.tune.pools.conditions import about_machine
from pruner.tune.run.database import same_target
from pruner.tune.run.finalists import copy_chosen

CHOSEN, MEASURED, DRAFTED = "chosen", "measured", "drafted"

_LOADER = '''"""Run the tuned network with TVM; pip install apache-tvm numpy."""
import os{alone}
os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # TVM alone uses half of the processors
import numpy, tvm
from tvm.runtime.vm import VirtualMachine
folder = os.path.dirname(os.path.abspath(__file__))
main = VirtualMachine(tvm.runtime.load_module(f"{folder}/network.so"), tvm.{device}())["main"]
inputs = numpy.load(f"{folder}/deploy/inputs.npz")  # or yours: arrays of these shapes and types
result = main(*[tvm.runtime.tensor(inputs[name], tvm.{device}()) for name in inputs.files])
outputs = [result] if hasattr(result, "numpy") else list(result)
print(*[(output.shape, output.dtype, output.numpy().ravel()[:4]) for output in outputs])
'''
# TVM's runtime without its compiler, which is smaller; its CUDA runtime comes with the compiler.
_ALONE = {"cpu": '; os.environ["TVM_USE_RUNTIME_LIB"] = "1"  # noqa: E702', "cuda": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A network as a library with its weights.

    ``applied``: tasks with a measured schedule; ``drafted``: with a drafted one; ``by_rules``: with
    TVM's own, on GPUs; ``untouched`` functions have none. ``relative_error`` against torch (of the
    ``worst_output``) and ``latencies_s`` are None and empty where it cannot run here.
    """

    library: Path
    target: str
    resources: Resources
    tasks: int
    applied: int
    drafted: int
    by_rules: int
    untouched: Sequence[str]
    size_bytes: int
    seconds: Mapping[str, float]
    relative_error: float | None = None
    worst_output: str = ""
    latencies_s: Sequence[float] = ()
    load_s: float | None = None
    notes: Sequence[str] = ()
    cuda_graph: bool = False

    def lines(self) -> Iterator[str]:
        """Yield lines for the user."""
        counts = f"{self.applied} measured, {self.drafted} drafted schedules"
        yield f"{self.library}: {self.size_bytes / 1e6:.1f} MB, {counts}"
        if len(self.latencies_s):
            median_ms, error = 1e3 * float(np.median(self.latencies_s)), self.relative_error
            compared = "" if error is None else f", relative error {error:.2g}"
            yield f"{median_ms:.4g} ms (median, {self.resources}){compared}"
        if self.cuda_graph:
            yield "most of its kernels are launched together, as CUDA graphs"
        yield from self.notes

    def row(self) -> dict[str, Any]:
        """Return the results for a last line, with the seconds of `timings`."""
        return {
            "library": str(self.library),
            "target": self.target,
            **asdict(self.resources),
            "tasks": self.tasks,
            "applied": self.applied,
            "drafted": self.drafted,
            "by_rules": self.by_rules,
            "untouched": len(self.untouched),
            "untouched_functions": list(self.untouched),
            "relative_error": self.relative_error,
            **timings(self.latencies_s),
            "cuda_graph": self.cuda_graph,
            "load_s": self.load_s,
            "size_bytes": self.size_bytes,
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


def deploy_network(
    folder: Path,
    platform: Platform,
    analyzer: Analyzer | None,
    *,
    database: Path | None = None,
    run: Path | None = None,
    draft: bool = True,
    cuda_graph: bool = False,
    seed: int = 0,
    worker: Worker | None = None,
    settings: BenchmarkSettings = SHORT_BENCHMARK,
    log: Log = silent,
) -> Deployed:
    """Build the network of a run folder; all results stay there.

    A library takes the place of an earlier one once its outputs are right, where they can be
    compared; a wrong one stays in ``deploy/`` alone, and then the earlier one is removed, too: its
    numbers would be taken for those of the new library.

    `database`: TVM's records, `run`: the run that has the finalists, both by default the folder
    itself. ``draft=False``: tasks without records get no schedule (TVM's rules on GPUs).
    ``cuda_graph``: see :func:`pruner.tune.deploy.build.build_network`. `worker`: see
    :func:`pruner.tune.deploy.build.network_worker`. `settings`: how long the library is timed.
    Raises `PrunerError`: not the folder of a network, nothing to apply, records of another target,
    a graph for another device than CUDA's, a network that changed since, or outputs that are wrong.
    """
    tasks, request = _opened(folder, platform, cuda_graph)
    database, target = database or folder, request.tvm_target()
    modules, chosen = {task.name: task.module for task in tasks}, folder / WORK / CHOSEN
    seconds: dict[str, float] = {}
    measured = recorded_keys(database, target) & {task.key for task in tasks}
    if not measured and not draft:
        raise PrunerError(
            f"{folder}: no task of this network has a measured program; tune it longer, or deploy "
            "drafted ones with draft=true"
        )
    log(f"{len(measured)} of {len(tasks)} tasks have measured programs")
    # the order of sources is their precedence: measured before drafted
    sources = {MEASURED: database.resolve()} if measured else {}
    if measured and copy_chosen(run or folder, database, modules, target, chosen):
        sources = {CHOSEN: chosen, **sources}
    if draft:
        rest = [t.workload for t in tasks if t.key not in measured and not is_view(t.module)]
        sources[DRAFTED] = folder / draft_network.FOLDER
        with counted(seconds, "draft"):
            draft_network.draft_tasks(
                rest, platform, analyzer, sources[DRAFTED], seed=seed, log=log
            )
    log("building the network")
    library, log_file = folder / WORK / LIBRARY, folder / LOG
    built = build_network(
        folder,
        sources,
        library,
        log_file,
        threads=platform.cores,
        cuda_graph=cuda_graph,
        worker=worker,
    )
    if built.library != library:  # of an earlier command: aside until it is checked again
        built = replace(built, library=built.library.replace(library))
    deployed = _summary(folder, request, tasks, measured, built, platform, seconds, cuda_graph)
    try:
        deployed = _checked(folder, request, deployed, built.interface, settings, platform, log)
    except PrunerError:
        remove_built(folder)
        (folder / WORK / BUILT_FILE).unlink(missing_ok=True)  # the next command builds it again
        raise
    return put(folder, deployed, platform)


def cannot_run(platform: Platform) -> str | None:
    """Explain why a built network cannot run here, else None."""
    if platform.address is not None:
        return "the device is behind a tracker"
    return missing_device(platform)


def request_of(folder: Path) -> NetworkRequest:
    """Read the request of a network's run; raise `DataError` without, or if damaged."""
    if not (folder / REQUEST).is_file():
        raise DataError(f"{folder}: no {REQUEST} there; name the run folder of a network")
    return NetworkRequest.read(folder / REQUEST)


def _opened(
    folder: Path, platform: Platform, cuda_graph: bool
) -> tuple[list[NetworkTask], NetworkRequest]:
    request = request_of(folder)
    if not (folder / TASKS).is_file():
        raise DataError(f"{folder}: no {TASKS}, its import did not end; start a new run")
    tasks, target = read_tasks(folder / TASKS), request.tvm_target()
    if not same_target(platform.target, target):
        raise PrunerError(
            f"this network was tuned for {target}, not for {platform.target}; leave platform= and "
            "target= out"
        )
    if cuda_graph and not is_cuda(target):
        raise PrunerError(
            f"cuda_graph=true: this network was tuned for {target.kind.name}; only CUDA devices "
            "have such graphs, leave it out"
        )
    return tasks, request


def _summary(
    folder: Path,
    request: NetworkRequest,
    tasks: Sequence[NetworkTask],
    measured: set[str],
    built: Built,
    platform: Platform,
    seconds: Mapping[str, float],
    cuda_graph: bool,
) -> Deployed:
    """Count the schedules of a built network, unless records were lost."""
    applied = sum(built.applied.by_source.get(name, 0) for name in (CHOSEN, MEASURED))
    if applied < len(measured):  # a run that goes on may have added some
        raise PrunerError(
            f"{folder}: {applied} tasks got their records, {len(measured)} have some; the network "
            "was lowered differently than when it was tuned"
        )
    return Deployed(
        library=built.library,
        target=str(request.tvm_target()),
        resources=Resources.of(platform),
        tasks=len(tasks),
        applied=applied,
        drafted=built.applied.by_source.get(DRAFTED, 0),
        by_rules=built.applied.by_rules,
        untouched=built.applied.untouched,
        size_bytes=built.size_bytes,
        seconds={**seconds, **built.seconds},
        notes=built.notes,
        cuda_graph=cuda_graph,
    )


def _checked(
    folder: Path,
    request: NetworkRequest,
    deployed: Deployed,
    interface: Interface,
    settings: BenchmarkSettings,
    platform: Platform,
    log: Log,
) -> Deployed:
    """Run the library in a new process; refuse outputs unlike torch's."""
    form, work, reason = request.form, folder / WORK, cannot_run(platform)
    if reason is None:
        log("running it with TVM's runtime")
        libraries = {OURS: Library(label="ours", path=deployed.library)}
        given: Any = {"inputs": work / INPUTS, "resources": deployed.resources}
        seconds = dict(deployed.seconds)
        with counted(seconds, "run"):
            baselines = network_baselines(request.source, [], libraries, **given)
            (ours,) = run_interleaved(baselines, work, settings)
            if ours.error is not None:
                raise PrunerError(
                    f"{deployed.library}: it was built but does not run: {ours.error}"
                )
            found: dict[str, Any] = {}
            if (work / EXPECTED).is_file():
                found["relative_error"], found["worst_output"] = _worst(work, interface)
        found |= {"latencies_s": ours.latencies_s, "load_s": ours.facts["load_s"]}
        deployed = replace(deployed, **found, seconds=seconds)
    else:
        deployed = replace(deployed, notes=[*deployed.notes, f"compiled but not run: {reason}"])
    most = TOLERANCE[form.precision if form.halves else interface.precision]
    most = max(most, QUANTISED) if interface.rounds else most
    if _is_wrong(deployed, most) and not form.halves:
        deployed = _with_rounding(folder, request.source, deployed, interface)
    if _is_wrong(deployed, most):
        raise PrunerError(
            f"{deployed.library}: its outputs differ from torch's by {deployed.relative_error:.3g} "
            f"of the largest ({deployed.worst_output}); do not use it; if its weights changed, "
            f"remove {folder / LOWERED} and deploy again"
        )
    return deployed


def _is_wrong(deployed: Deployed, most: float) -> bool:
    error = deployed.relative_error
    return error is not None and not error <= most  # so that a NaN counts as wrong


def _with_rounding(
    folder: Path, source: NetworkSource, deployed: Deployed, interface: Interface
) -> Deployed:
    """Compare again; the rounding of the numbers that each output sums counts as right."""
    work = folder / WORK
    if source.is_onnx:
        return deployed
    given = (source, work / INPUTS)
    try:
        scales = ask(build.__name__, build.scales_of.__name__, *given, log_file=work / "scales.log")
    except PrunerError:  # torch cannot trace the network
        return deployed
    if not any(scales):  # no output is a sum
        return deployed
    error, worst = _worst(work, interface, scales)
    note = f"outputs cancel: {deployed.relative_error:.2g} of the largest is rounding"
    notes = [*deployed.notes, note]
    return replace(deployed, relative_error=error, worst_output=worst, notes=notes)


def put(folder: Path, deployed: Deployed, platform: Platform) -> Deployed:
    """Put the library in place, with the loader and then ``deploy.json``."""
    # aside first: it may be in its place already, whose results are removed
    library = deployed.library.replace(folder / WORK / LIBRARY)
    remove_built(folder)
    deployed = replace(deployed, library=library.replace(folder / LIBRARY))
    device = "cpu" if platform.device == "cpu" else "cuda"
    loader = _LOADER.replace("{device}", device).replace("{alone}", _ALONE[device])
    loader = loader.replace("{threads}", str(deployed.resources.threads))
    (folder / LOADER).write_text(loader, encoding="utf-8")
    machine = {"date": time.strftime("%Y-%m-%d"), **about_machine()}
    latencies_s = list(deployed.latencies_s)
    everything = {**deployed.row(), "machine": machine, "latencies_s": latencies_s}
    # last: its presence marks a complete deployment
    write_json(folder / DEPLOY_FILE, everything, indent=1)
    return deployed


def _worst(work: Path, interface: Interface, scales: Sequence[float] = ()) -> tuple[float, str]:
    found, names = work / f"{OURS}-outputs.npz", names_of(interface.outputs)
    return worst_output(found, work / EXPECTED, names=names, rounds=interface.rounds, scales=scales)
