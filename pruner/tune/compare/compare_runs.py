"""Time a run's network or kernels beside baselines and other runs."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pruner.archives import write_arrays
from pruner.errors import DataError, PrunerError
from pruner.files import write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import Worker
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import (
    BASELINES,
    DRAFT,
    EAGER,
    ONNXRUNTIME,
    OURS,
    UNTUNED,
    Library,
    Resources,
    check_names,
    kernel_baselines,
    network_baselines,
)
from pruner.tune.compare.benchmark import (
    BenchmarkSettings,
    SideBySide,
    run_interleaved,
)
from pruner.tune.deploy.build import INPUTS, build_network
from pruner.tune.deploy.built_files import COMPARISON_FILE, KERNELS_FILE, LIBRARY, WORK
from pruner.tune.deploy.forms import built_form
from pruner.tune.deploy.network import DRAFTED, cannot_run, request_of
from pruner.tune.measure.energy import EnergyMeter
from pruner.tune.measure.measurer import Platform
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks import draft_network
from pruner.tune.networks.draft_task import is_view
from pruner.tune.networks.extraction import TASKS, read_tasks
from pruner.tune.networks.request import NetworkRequest
from pruner.tune.run.tuning import kernel_path
from pruner.tune.workloads import Workload, arguments

_WORK = "beside"  # a folder of inputs, outputs, logs and libraries of TVM
KERNEL_BENCHMARK = BenchmarkSettings(
    warm_up_s=1.0, rounds=10, turn_s=0.2, most_s=20.0, num_parallel=4
)


def compare_network(
    folder: Path,
    names: Sequence[str],
    others: Sequence[Path],
    *,
    platform: Platform,
    analyzer: Analyzer | None,
    settings: BenchmarkSettings = BenchmarkSettings(),  # noqa: B008  # frozen
    meter: EnergyMeter | None = None,
    worker: Worker | None = None,
    log: Log = silent,
) -> SideBySide:
    """Time a run's deployed network beside baselines; write ``beside.json``.

    On a GPU baselines compute in float16 where ours does. Outputs are compared with those of torch,
    for an ONNX file with those of onnxruntime. ``worker`` builds TVM's untuned and drafted networks
    (:func:`~pruner.tune.deploy.build.network_worker`). Raises `PrunerError`: a network that cannot
    run here, unknown names, or runs that do not fit.
    """
    reason = cannot_run(platform)
    if reason is not None:
        raise PrunerError(f"{folder}: no comparison is possible, {reason}; add baselines=[]")
    check_names(names)
    # before libraries are built, which takes minutes
    check_others(folder, others)
    work, request, resources = folder / _WORK, request_of(folder), Resources.of(platform)
    form = built_form(folder)
    places = _places(folder, others).items()
    libraries = {name: _library(name, place, place / LIBRARY, LIBRARY) for name, place in places}
    if UNTUNED in names:
        libraries[UNTUNED] = _built(form, {}, work / UNTUNED, "TVM untuned", {}, worker)
    if DRAFT in names:
        start, database = time.perf_counter(), work / "drafts"
        shutil.rmtree(database, ignore_errors=True)  # drafted anew: its duration is a result
        tasks = read_tasks(form / TASKS)
        rest = [task.workload for task in tasks if not is_view(task.module)]
        log(f"drafting {len(rest)} tasks")
        seed = request.source.seed
        draft_network.draft_tasks(rest, platform, analyzer, database, seed=seed)
        facts, sources = {"draft_s": time.perf_counter() - start}, {DRAFTED: database}
        label = "TVM, drafted only"
        libraries[DRAFT] = _built(form, sources, work / DRAFT, label, facts, worker)
    inputs, half = folder / WORK / INPUTS, request.form.halves
    baselines = network_baselines(
        request.source, names, libraries, inputs=inputs, resources=resources, half=half
    )
    reference = ONNXRUNTIME if request.source.is_onnx else EAGER
    found = run_interleaved(baselines, work, settings, reference=reference, meter=meter, log=log)
    rows = [row.row() for row in found]
    compared = SideBySide(rows=rows, resources=resources, reference=reference)
    write_json(folder / COMPARISON_FILE, compared.content(), indent=1)
    return compared


def compare_kernels(
    folder: Path,
    workloads: Sequence[Workload],
    names: Sequence[str],
    others: Sequence[Path],
    *,
    resources: Resources,
    settings: BenchmarkSettings = KERNEL_BENCHMARK,
    meter: EnergyMeter | None = None,
    log: Log = silent,
) -> dict[str, SideBySide]:
    """Time every task's kernel beside torch; write ``kernels_beside.json`` after each.

    Outputs are compared with those of torch eager, where it runs. Raises `PrunerError`: an unknown
    name.
    """
    found: dict[str, SideBySide] = {}
    for workload in workloads:
        log(f"{workload.name}: beside {', '.join([*names, *(o.name for o in others)])}")
        libraries = {}
        for name, place in _places(folder, others).items():
            path = kernel_path(place, workload.name)
            libraries[name] = _library(name, place, path, str(path))
        *given, output = arguments(workload.module)
        work = folder / _WORK / workload.name
        work.mkdir(parents=True, exist_ok=True)
        inputs = work / INPUTS
        write_arrays(inputs, *seeded(given))
        baselines = kernel_baselines(
            workload.spec, names, libraries, inputs=inputs, output=output, resources=resources
        )
        timed = run_interleaved(baselines, work, settings, reference=EAGER, meter=meter, log=log)
        rows = [row.row() for row in timed]
        found[workload.name] = SideBySide(rows=rows, resources=resources, reference=EAGER)
        tasks = {task: compared.rows for task, compared in found.items()}
        content = {**asdict(resources), "reference": EAGER, "tasks": tasks}
        # after every task: an interruption loses the present task only
        write_json(folder / KERNELS_FILE, content, indent=1)
    return found


def check_equal(other: Path, ours: Sequence[Workload], theirs: Sequence[Workload]) -> None:
    """Raise `DataError` unless a run has equal programs for our tasks."""
    known = {task.name: task for task in theirs}
    both = [task for task in ours if task.name in known]
    if not both:
        raise DataError(f"compare={other}: it has none of {', '.join(task.name for task in ours)}")
    for task in both:
        if task.fingerprint != known[task.name].fingerprint:
            raise DataError(f"compare={other}: its {task.name} is another program")


def check_others(folder: Path, others: Sequence[Path]) -> None:
    """Raise `PrunerError` unless `others` are runs of the same network, with other names."""
    asked = request_of(folder)
    check_run_names(folder, others)
    for other in others:
        found = request_of(other)
        if _equal_parts(found) != _equal_parts(asked):
            raise PrunerError(
                f"compare={other}: a run of another network, precision or target, "
                f"{found.source.label} with seed {found.source.seed}, {found.form.precision} and "
                f"{dict(found.target)}; compare runs of equal ones"
            )


def check_run_names(folder: Path, others: Sequence[Path]) -> None:
    """Raise `DataError` for a run folder with the name of a baseline or another."""
    taken = [_name(folder), OURS, *BASELINES]
    for other in others:
        if (name := _name(other)) in taken:
            raise DataError(
                f"compare={other}: {name} is taken by a baseline or another run; "
                "give every run folder its own name"
            )
        taken.append(name)


def _equal_parts(request: NetworkRequest) -> tuple[Any, ...]:
    """Select the parts that compared runs must share; layouts may differ."""
    return request.source, request.target, request.form.precision


def _name(folder: Path) -> str:
    return folder.resolve().name


def _places(folder: Path, others: Sequence[Path]) -> dict[str, Path]:
    return {OURS: folder, **{_name(other): other for other in others}}


def _library(name: str, folder: Path, path: Path, shown: str) -> Library:
    lacking = f"no {shown}; run: pruner deploy run={folder}"
    return Library(label=name, path=path, missing=None if path.is_file() else lacking)


def _built(
    folder: Path,
    sources: Mapping[str, Path],
    place: Path,
    label: str,
    facts: Mapping[str, Any],
    worker: Worker | None,
) -> Library:
    log_file = place.with_suffix(".log")
    try:
        # no reference: all outputs are compared in the race
        built = build_network(
            folder, sources, place / LIBRARY, log_file, reference=False, worker=worker
        )
    except PrunerError as error:
        return Library(label=label, missing=str(error))
    facts = {**facts, "build_s": sum(built.seconds.values())}
    return Library(label=label, path=built.library, facts=facts)
