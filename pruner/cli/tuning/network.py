"""Commands of ``network=``: list its tasks, draft, tune and build it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.options import choice, plain
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import open_run
from pruner.cli.shared.trust import named_code
from pruner.cli.tuning.platform import chosen_platform, load_draft, network_format, platform_of
from pruner.errors import DataError, PrunerError
from pruner.files import save_metrics
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import Worker
from pruner.tune.compare.benchmark import FIRST_LOOK, SHORT_BENCHMARK, BenchmarkSettings
from pruner.tune.compiling import linker
from pruner.tune.deploy.build import network_worker
from pruner.tune.deploy.built_files import LOADER, deploying
from pruner.tune.deploy.forms import deploy_faster, extract_original, forms
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.coverage import coverage
from pruner.tune.networks.draft_network import FOLDER as DRAFTS
from pruner.tune.networks.draft_network import DraftWorkers, draft_tasks, read_drafts
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.variants.choosing import choose_variants
from pruner.tune.run.journal import JOURNAL_FILE, SNAPSHOT_FILE
from pruner.tune.run.result import Tuned
from pruner.tune.workloads import Workload


def milliseconds(seconds: float) -> str:
    """Format seconds: 0.0243 becomes 24.3 ms, infinity a dash."""
    return "-" if seconds == float("inf") else f"{1e3 * seconds:.4g} ms"


def list_run(config: DictConfig, earlier: Path | None) -> dict[str, Any]:
    """Print the tasks of a network; return the last line's object."""
    platform = chosen_platform(config, measures=False)
    folder = earlier or open_run(config, "tune", run_label(config, network_label(config)))
    tasks = network_tasks(config, platform, folder, keep=False)
    form = NetworkRequest.read(folder / REQUEST).form
    say(f"{config.network}, {form}")
    say(f"{'task':52s} {'calls':>5s} {'MFLOP a call':>13s} {'share':>7s} {'spaces':>8s}  buffers")
    rows: dict[str, Any] = {}
    batched = 0.0
    for task in tasks:
        shapes = " ".join("x".join(map(str, shape)) for shape, _ in task.shapes)
        share = f"{task.share:7.2%}" if task.tuned else f"{'-':>7s}"
        found = coverage(task, platform.target) if task.tuned else None
        spaces = "-" if found is None else str(found)
        call = f"{task.weight:5d} {task.flops / 1e6:13.2f}"
        say(f"{task.name:52s} {call} {share} {spaces:>8s}  {shapes}")
        rows[task.name] = {"weight": task.weight, "flops": task.flops, "share": task.share}
        if found is not None:
            batched += task.share * found.whole
            rows[task.name] |= {"spaces": found.spaces, "batched": found.batched}
            rows[task.name] |= {"reasons": list(found.reasons)} if found.reasons else {}
    tuned = [row for row in rows.values() if "spaces" in row]
    say(
        f"{len(tasks)} tasks; {len(tuned)} with a thousandth of the arithmetic or more are tuned; "
        f"{batched:.1%} of the arithmetic is in tasks whose spaces are all batched"
    )
    result = {
        "network": str(config.network),
        "layout": form.layout,
        "precision": form.precision,
        "run_dir": str(folder),
        "num_tasks": len(tasks),
        "num_tuned": len(tuned),
        "gflop": sum(task.weight * task.flops for task in tasks) / 1e9,
        "batched_share": batched,
        "tasks": rows,
    }
    save_metrics(folder, result)
    return result


def draft_run(config: DictConfig, earlier: Path | None) -> dict[str, Any]:
    """Draft and build a network without measuring; return the last line."""
    with closing(DraftWorkers()) as workers, network_worker() as worker:
        platform = chosen_platform(config, measures=False)
        if config.deploy:
            linker(platform.target)  # refused before any work
        folder = earlier or open_run(config, "tune", run_label(config, network_label(config)))
        tasks = network_tasks(config, platform, folder, worker=worker, workers=workers)
        workloads, analyzer = [task.workload for task in tasks], run_draft(platform, config)
        how: Any = {"seed": config.seed, "workers": workers, "log": say}
        drafts = draft_tasks(workloads, platform, analyzer, folder / DRAFTS, **how)
        replayed = drafts.replayed(workloads)
        if replayed.tasks:
            say(str(replayed))
        result: dict[str, Any] = {
            "run_dir": str(folder),
            "work_dir": str(drafts.folder),
            "replayed_share": replayed.share,
            "drafted": dict(drafts.counts),
            "analyzer_estimate_s": drafts.estimate_s(workloads),
            "trials": 0,
            "total_seconds": drafts.seconds,
        }
        save_metrics(folder, result)
        workers.close()
        if config.deploy:
            result = deployed(config, folder, result, worker, FIRST_LOOK)
        calls = {task.name: float(task.weight) for task in tasks}
        known = read_drafts(folder / DRAFTS)
        found: Any = None
        if analyzer is not None and not calls.keys() - known.keys():
            from pruner.tune.networks.filtering.forecaster import sum_of  # torch reads its model

            found, _ = sum_of(known, calls, analyzer)
        if found is not None:
            say(f"{config.network}: forecast before any measurement {found}")
            result = {**result, "forecast_s": found.seconds}
            save_metrics(folder, result)
        return result


def run_label(config: DictConfig, what: str) -> str:
    """Make the label that follows the time in a folder's name."""
    return f"{config.platform.name}-{what}-{choice('policy')}"


def network_label(config: DictConfig) -> str:
    """Return the network's name for a folder."""
    return NetworkSource(name=str(config.network)).label


def network_tasks(
    config: DictConfig,
    platform: Platform,
    folder: Path,
    *,
    keep: bool = True,
    worker: Worker | None = None,
    workers: DraftWorkers | None = None,
) -> list[NetworkTask]:
    """Extract the tasks of ``network=``, or read an earlier start's.

    ``keep``: the folder keeps the lowered network, too, from which its library is built. With
    ``variants=true`` they are the tasks of the chosen variants; ``workers`` draft them.
    """
    if (folder / TASKS).is_file():
        return read_tasks(folder / TASKS)
    sizes = NetworkOptions(**plain(config.sizes))
    source = NetworkSource(name=str(config.network), options=sizes, seed=config.seed)
    form = network_format(platform.device, layout=config.layout, precision=config.precision)
    analyzer = run_draft(platform, config) if config.variants else None
    if config.variants and analyzer is None:
        raise PrunerError(
            "variants=true: the draft chooses them, and it needs a description of the device "
            "(platform=NAME); leave variants out"
        )
    say(f"importing {source.label}, {form} ...")
    if config.variants:
        how: Any = {"seed": config.seed, "worker": worker, "workers": workers, "log": say}
        form = choose_variants(source, platform, analyzer, folder, form, **how)
    return extract_tasks(
        source,
        platform.target_json,
        folder,
        form,
        keep=keep,
        worker=worker,
        cache=_cache(config),
        log=say,
    )


def tasks_to_tune(config: DictConfig, platform: Platform, folder: Path) -> list[NetworkTask]:
    """Extract the tasks of a network; with chosen variants, also the tasks without them."""
    tasks = network_tasks(config, platform, folder)
    if config.compile_only:
        return tasks
    # a run of an earlier version continues with the tasks that it has
    if not any((folder / name).is_file() for name in (JOURNAL_FILE, SNAPSHOT_FILE)):
        network_platform(folder, config)  # refuses code of others
        extract_original(folder, cache=_cache(config), log=say)
    found: dict[str, NetworkTask] = {}
    for place in forms(folder).values():
        for task in read_tasks(place / TASKS):
            # a task of both forms has a larger share of the form with less arithmetic
            found[task.name] = max(found.get(task.name, task), task, key=lambda one: one.share)
    if len(found) > len(tasks):
        say("the network is tuned with its variants and without; the numbers below are of both")
    return list(found.values())


def _cache(config: DictConfig) -> Path | None:
    return None if config.get("cache") is None else Path(config.cache)


def tuned_workloads(config: DictConfig, tasks: Sequence[NetworkTask]) -> list[Workload]:
    """List the tasks to spend trials on; raise `PrunerError` for none."""
    found = [task.workload for task in tasks if task.tuned]
    if not found:
        raise PrunerError(
            f"network={config.network}: none of its {len(tasks)} tasks has arithmetic to tune; "
            "effort=draft drafts and builds it"
        )
    return found


def estimated(config: DictConfig, tuned: Tuned) -> dict[str, Any]:
    """Print and return a network's estimate; empty without measured programs."""
    if config.network is None or config.compile_only:
        return {}
    found = _by_form(tuned)
    for name, one in found.items():
        form = f" ({name})" if len(found) > 1 else ""
        say(
            f"{config.network}{form}: {milliseconds(one.estimate.latency_s)} estimated; "
            f"{one.estimate.measured_share:.1%} of the tuned arithmetic has a measured program"
        )
    best = min(found.values(), key=lambda one: one.estimate.latency_s)
    row = {
        "network": str(config.network),
        "best_latency_s": best.best_latency_s,
        "untuned_latency_s": best.untuned_latency_s,
        "estimated_latency_s": best.estimate.latency_s,
        "measured_share": best.estimate.measured_share,
    }
    forms_s = {name: one.estimate.latency_s for name, one in found.items()}
    return row | ({"forms_estimated_s": forms_s} if len(found) > 1 else {})


def _by_form(tuned: Tuned) -> Mapping[str, Tuned]:
    places, found = forms(tuned.folder), {}
    if len(places) < 2:
        return {"": tuned}
    for name, place in places.items():
        calls = {task.name: float(task.weight) for task in read_tasks(place / TASKS)}
        own = [replace(one, weight=calls[one.name]) for one in tuned.tasks if one.name in calls]
        found[name] = replace(tuned, tasks=own)
    return found


def deployed(
    config: DictConfig,
    folder: Path,
    result: dict[str, Any],
    worker: Worker | None = None,
    settings: BenchmarkSettings = SHORT_BENCHMARK,
) -> dict[str, Any]:
    """Build a finished run's network as ``pruner deploy``; extend the result."""
    try:
        row = deploy_run(folder, config, draft=True, worker=worker, settings=settings)
    except KeyboardInterrupt:
        say(f"the run is over; pruner deploy run={folder} builds its network")
        raise
    result = {**result, "deployed": {name: value for name, value in row.items() if value != []}}
    save_metrics(folder, result)
    from pruner.study.network.page import write_report  # imports plots, which takes seconds

    say(f"report: {write_report(folder)}; pruner deploy adds the baselines")
    return result


def deploy_run(
    folder: Path,
    config: DictConfig,
    *,
    draft: bool,
    cuda_graph: bool = False,
    worker: Worker | None = None,
    settings: BenchmarkSettings = SHORT_BENCHMARK,
) -> dict[str, Any]:
    """Build the network of a run folder; return the content of ``deploy.json``.

    Raises `PrunerError`: another process builds it, and see
    :func:`pruner.tune.deploy.forms.deploy_faster`.
    """
    request = folder / REQUEST
    if not request.is_file():
        raise DataError(f"{folder}: no {REQUEST}, its import did not begin; start a new run")
    platform = network_platform(folder, config)
    with deploying(folder):
        built = deploy_faster(
            folder,
            platform,
            run_draft(platform, config),
            database=database_of(config),
            draft=draft,
            cuda_graph=cuda_graph,
            seed=config.seed,
            worker=worker,
            settings=settings,
            log=say,
        )
    for line in built.lines():
        say(line)
    say(f"load it as {folder / LOADER} does")
    return built.row()


def network_platform(folder: Path, config: DictConfig) -> Platform:
    """Make the platform of a network's tasks; refuse code of others (`DataError`)."""
    request = NetworkRequest.read(folder / REQUEST)
    if named_code({"network": request.source.name}) and not named_code(plain(config)):
        raise DataError(
            f"{folder / REQUEST}: of {request.source.name}, but the run is of {config.network}; "
            "start a new one"
        )
    return platform_of(config, json.dumps(dict(request.target)))


def run_draft(platform: Platform, config: DictConfig) -> Analyzer | None:
    """Load the analyzer of a run, in the form that its configuration names."""
    form = OmegaConf.select(config, "draft.form")  # runs of earlier versions have none
    return load_draft(platform) if form is None else load_draft(platform, form)


def database_of(config: DictConfig) -> Path | None:
    """Return the folder of TVM's database, None: the run folder."""
    return None if config.work_dir is None else Path(config.work_dir)
