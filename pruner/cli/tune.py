"""``python tune.py``: tune programs on real hardware."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig

from pruner.cli.deploy import deploy_run
from pruner.cli.shared import loggers
from pruner.cli.shared.door import run_door
from pruner.cli.shared.options import build, choice, own_models, plain
from pruner.cli.shared.output import print_result, say
from pruner.cli.shared.runs import new_run_folder, resumed_config, save_config
from pruner.cli.tuning.interrupts import Interrupts
from pruner.cli.tuning.live import Show, network_display
from pruner.errors import PrunerError
from pruner.files import load_metrics, save_metrics
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.training.fit import checkpoint_file
from pruner.program.device import device_from_mapping
from pruner.study.tuning import draw, load_run, time_table
from pruner.tune.measure.jobs import RpcAddress, Timing
from pruner.tune.measure.machine import local_platform, make_platform, missing_device
from pruner.tune.measure.measurer import MeasureSettings, Platform
from pruner.tune.measure.remote import check_health
from pruner.tune.networks.catalog import NetworkOptions
from pruner.tune.networks.coverage import coverage
from pruner.tune.networks.drafted import FOLDER as DRAFTS
from pruner.tune.networks.drafted import draft_tasks
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks
from pruner.tune.networks.lowering import NetworkForm
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.rewrites.layout import chosen_layout
from pruner.tune.networks.rewrites.precision import chosen_precision
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.tasks import NetworkTask
from pruner.tune.run.journal import JOURNAL_FILE
from pruner.tune.run.learning import OnlineModel, verifier
from pruner.tune.run.options import TuneBudget, TuneOptions, platform_analyzer
from pruner.tune.run.result import Tuned
from pruner.tune.run.tuning import tune as tune_workloads
from pruner.tune.workloads import Workload, load_workloads

MORE = ("trials", "seconds", "patience")  # of the budget: what a resumed run may be given anew
_NEARLY = 0.9  # of its seconds: then a run has used up its time
NETWORK_POLICY = "pruner_network"  # unless policy= says otherwise
LOCAL = "cpu"  # platform=cpu: the described CPU that fits this machine
TIMING = ("number", "repeats", "cv_limit", "min_repeat_ms", "flush_cache")


def tune(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    if config.plot is not None:
        return plot(config)
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed_config(earlier, config, more=[f"budget.{name}" for name in MORE])
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    if config.network is None and config.list:
        raise PrunerError("list=true lists the tasks of a network: say which with network=")
    workloads = [] if config.network is not None else load_workloads(plain(config.workload))
    options, effort = tune_options(config), build(config.effort)
    if not effort.measures and config.network is None:
        raise PrunerError("effort=draft drafts the tasks of a network; say which with network=")
    folder = earlier or _open_run(config, workloads)
    if config.network is not None:
        network = _network_tasks(config, options, folder)
        if config.list:
            return _listed(config, options.platform, network, folder)
        if not effort.measures:
            result = _drafted(network, options, folder)
            return _deployed(config, folder, result) if config.deploy else result
        workloads = [task.workload for task in network if task.tuned]
        options = replace(options, budget=effort.budget(plain(config.budget), len(workloads)))
    if earlier is not None:
        _check_unfinished(earlier, options)
        save_config(earlier, config)  # a later start goes on with the budget given now
    tags = [config.platform.name, choice("policy")]
    about = loggers.About(config=plain(config), tags=tags)
    logger = build(config.logger)(folder=folder, name=folder.name, about=about)
    interrupts = Interrupts(say)
    try:
        with interrupts as asked, _display(config, options.budget) as show:
            report = partial(_report, logger, show)
            tuned = tune_workloads(
                workloads, options, folder, tell=say, report=report, interrupted=asked
            )
        result = tuned.metrics() | _of_network(config, tuned)
        tasks = [{"task": name, **task} for name, task in result["tasks"].items()]
        loggers.report(logger, result, tasks, under="tuned")
    finally:
        loggers.close(logger)
    if interrupts.caught is not None:
        result["interrupted"] = True
    save_metrics(folder, result)
    say(time_table(result["seconds"]))
    if result["trials"] and interrupts.caught is None:
        draw([load_run(folder)], folder)
        _tell_verdicts(tuned)
    if interrupts.caught is not None:
        say(f"ended early; python tune.py resume={folder} goes on")
        print_result(result)
        sys.exit(interrupts.exit_code)
    if config.network is not None and config.deploy and not config.compile_only:
        result = _deployed(config, folder, result)
    return result


def _deployed(config: DictConfig, folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Build the network of a run that is over, as ``deploy.py`` does; its result with that."""
    row = deploy_run(folder, config, draft=True)
    result = {**result, "deployed": {name: value for name, value in row.items() if value != []}}
    save_metrics(folder, result)
    return result


def _of_network(config: DictConfig, tuned: Tuned) -> dict[str, Any]:
    """What is known of a network as a whole; nothing for operators."""
    if config.network is None:
        return {}
    found = tuned.estimate
    say(
        f"{config.network}: {1e3 * found.latency_s:.4g} ms estimated; "
        f"{found.measured_share:.1%} of the tuned arithmetic has a measured program"
    )
    return {
        "network": str(config.network),
        "network_latency_s": found.latency_s,
        "measured_share": found.measured_share,
    }


def _drafted(tasks: Sequence[NetworkTask], options: TuneOptions, folder: Path) -> dict[str, Any]:
    """Draft every task and measure nothing; the object of the last line."""
    workloads = [task.workload for task in tasks]
    drafts = draft_tasks(
        workloads,
        options.platform,
        options.analyzer,
        folder / DRAFTS,
        seed=options.seed,
        tell=say,
    )
    result = {
        "run_dir": str(folder),
        "work_dir": str(drafts.folder),
        "drafted": dict(drafts.counts),
        "analyzer_estimate_s": drafts.estimate_s(workloads),
        "trials": 0,
        "total_seconds": drafts.seconds,
    }
    save_metrics(folder, result)
    return result


def _tell_verdicts(tuned: Tuned) -> None:
    """What came of every task and where its kernel is.

    Raises:
        PrunerError: nothing came of any; the numbers are in ``metrics.json``.
    """
    for task in tuned.tasks:
        say(task.verdict())
        if task.kernel is not None:
            say(f"  kernel: {task.kernel} (docs/library.md says how to call it)")
    if all(task.all_failed for task in tuned.tasks):
        failed = "; ".join(task.verdict() for task in tuned.tasks)
        raise PrunerError(f"nothing was tuned: {failed}; see {tuned.folder / JOURNAL_FILE}")


def _check_unfinished(folder: Path, options: TuneOptions) -> None:
    """A finished run goes on only where it is given more trials, or more time."""
    done, budget = load_metrics(folder), options.budget
    if done is None or "seconds" not in done or done.get("interrupted"):
        return
    more = "trials" if options.compile_only or done["trials"] >= budget.trials else None
    if budget.seconds is not None and done["total_seconds"] >= _NEARLY * budget.seconds:
        more = more or "seconds"
    if more is not None:
        raise PrunerError(
            f"resume={folder}: this run is finished ({done['trials']} trials, "
            f"{done['total_seconds']:.0f} s); give more with budget.{more}="
        )


def tune_options(config: DictConfig) -> TuneOptions:
    """What the options name.

    Raises:
        PrunerError: a value that cannot work, or options that contradict each other.
    """
    policy, platform = build(config.policy), _platform(config)
    make_model = None
    _check_adaptation(config, learns=policy.takes_model and config.verify)
    if policy.takes_model and config.verify:
        make_model = _verifier(config)
    elif config.checkpoint is not None:
        raise PrunerError(
            f"checkpoint={config.checkpoint}: nothing would use it; it needs verify=true and a "
            "policy such as pruner_live"
        )
    options, network = plain(config.measure), config.network is not None
    timing = Timing(**{k: options.pop(k) for k in TIMING})
    if network and options["lag"] is None:
        options["lag"] = 1  # while one task's programs are built, another's are chosen
    if options["baseline"] is None:
        options["baseline"] = not network  # a minute of loops without schedule, and no news
    return TuneOptions(
        platform=platform,
        policy=policy,
        budget=build(config.effort).budget(plain(config.budget), None),
        meet=16 if network else 64,
        kernels=not network,
        measure=MeasureSettings(timing=timing, **options),
        analyzer=load_draft(platform),
        make_model=make_model,
        order=config.task_order,
        replay_only=config.spaces == "replay",
        compile_only=config.compile_only,
        work_dir=None if config.work_dir is None else Path(config.work_dir),
        warm_start=[Path(name) for name in _several(config.warm_start)],
        seed=config.seed,
    )


def _several(given: Any) -> list[str]:
    """Nothing, one name or a list of names."""
    named = plain(given)
    return [] if named is None else [named] if isinstance(named, str) else list(named)


def _check_adaptation(config: DictConfig, *, learns: bool) -> None:
    """Refuse a way to adapt where no network learns."""
    model, way = (config[name]._target_ for name in ("model", "adaptation"))
    if get_class(way) is Scratch or (learns and getattr(get_class(model), "is_network", False)):
        return
    reason = f"{model.rpartition('.')[2]} is grown anew" if learns else "no model learns"
    raise PrunerError(
        f"adaptation: {way.rpartition('.')[2]} would not be used, {reason}; it needs a network, "
        "verify=true and a policy such as pruner_live"
    )


def load_draft(platform: Platform) -> Analyzer | None:
    """The platform's analyzer; None where there is none, which is told."""
    try:
        return platform_analyzer(platform)
    except PrunerError as error:
        say(f"no draft: {error}")
        return None


def _verifier(config: DictConfig) -> Callable[[], OnlineModel]:
    given = config.checkpoint
    return verifier(
        partial(build, config.model),
        partial(build, config.adaptation),
        checkpoint=None if given is None else checkpoint_file(Path(given)),
        platform=config.platform.name,
        seed=config.seed,
        tell=say,
        own=own_models(config.models.own),
    )


def _platform(config: DictConfig) -> Platform:
    address = None
    if config.runner.kind == "rpc":
        names = ("host", "port", "key", "session_timeout_s")
        address = RpcAddress(**{name: config.runner[name] for name in names})
    device = device_from_mapping(plain(config.platform))
    platform = make_platform(device, target=plain(config.target), address=address)
    if address is not None:
        found = check_health(address, config.runner.health_timeout_s)
        say(f"{found['servers']} device(s) {address.key}, answer in {found['seconds']:.2f} s")
    measures = build(config.effort).measures and not (config.compile_only or config.list)
    reason = missing_device(platform) if measures else None
    if reason is not None:
        raise PrunerError(
            f"platform={config.platform.name}: {reason}; use runner=rpc, compile_only=true, "
            "platform=cpu or, for a network, effort=draft"
        )
    say(f"target {platform.target_json}")
    return platform


def plot(config: DictConfig) -> dict[str, Any]:
    """Draw the curves and the time of earlier runs into a new folder."""
    runs = [load_run(Path(name)) for name in _several(config.plot)]
    if not runs:
        raise PrunerError("plot=[]: name at least one run folder")
    folder = new_run_folder(Path(config.outputs), "tune", config.run_id, "plot")
    save_config(folder, config)
    for run in runs:
        say(f"{run.name}\n{time_table(run.seconds)}")
    result = {
        "plots": [str(path) for path in draw(runs, folder)],
        "runs": {
            run.name: {"best_latency_s": run.best_s.min(initial=float("inf")), **run.seconds}
            for run in runs
        },
    }
    save_metrics(folder, result)
    return result


def _network_tasks(config: DictConfig, options: TuneOptions, folder: Path) -> list[NetworkTask]:
    """The tasks of ``network=``, taken up from the folder where an earlier start found them."""
    if (folder / TASKS).is_file():
        return read_tasks(folder / TASKS)
    sizes = NetworkOptions(**plain(config.sizes))
    source = NetworkSource(name=str(config.network), options=sizes, seed=config.seed)
    form = network_form(config, options.platform.device)
    say(f"importing {source.label}, {form} ...")
    return extract_tasks(source, options.platform.target_json, folder, form)


def network_form(config: DictConfig, device: str) -> NetworkForm:
    """What ``layout=`` and ``precision=`` mean on a device. Raises `PrunerError` if nothing."""
    precision = chosen_precision(config.precision)
    layout = chosen_layout(config.layout, device=device, precision=precision)
    return NetworkForm(layout=layout, precision=precision)


def _listed(
    config: DictConfig, platform: Platform, tasks: Sequence[NetworkTask], folder: Path
) -> dict[str, Any]:
    """Show the tasks; the object of the last line."""
    form = NetworkRequest.read(folder / REQUEST).form
    say(f"{config.network}, {form}")
    say(f"{'task':52s} {'calls':>5s} {'MFLOP a call':>13s} {'share':>7s} {'spaces':>8s}  buffers")
    rows: dict[str, Any] = {}
    for task in tasks:
        shapes = " ".join("x".join(map(str, shape)) for shape, _ in task.shapes)
        share = f"{task.share:7.2%}" if task.tuned else f"{'-':>7s}"
        found = coverage(task, platform.target) if task.tuned else None
        spaces = "-" if found is None else str(found)
        call = f"{task.weight:5d} {task.flops / 1e6:13.2f}"
        say(f"{task.name:52s} {call} {share} {spaces:>8s}  {shapes}")
        rows[task.name] = {"weight": task.weight, "flops": task.flops, "share": task.share}
        if found is not None:
            rows[task.name] |= {"spaces": found.spaces, "batched": found.batched}
            rows[task.name] |= {"reasons": list(found.reasons)} if found.reasons else {}
    tuned = [row for row in rows.values() if "spaces" in row]
    batched = sum(row["share"] for row in tuned if row["batched"] == row["spaces"])
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


def _open_run(config: DictConfig, workloads: list[Workload]) -> Path:
    what = workloads[0].name if len(workloads) == 1 else f"{len(workloads)}-tasks"
    if config.network is not None:
        what = NetworkSource(name=str(config.network)).label
    label = f"{config.platform.name}-{what}-{choice('policy')}"
    folder = new_run_folder(Path(config.outputs), "tune", config.run_id, label)
    save_config(folder, config)
    return folder


def _display(config: DictConfig, budget: TuneBudget) -> AbstractContextManager[Show]:
    """How rows of the loop are shown: of a network all together, of operators each."""
    return nullcontext(partial(_say, budget)) if config.network is None else network_display(budget)


def _say(budget: TuneBudget, row: Mapping[str, Any]) -> None:
    best_ms = 1e3 * row["best_latency_s"]
    say(
        f"[{row['trials']}/{budget.trials}] {row['task']}: best {best_ms:.4g} ms"
        f"  failed {row['failed']}  {row['seconds']:.1f} s"
    )


def _report(logger: Any, show: Show, row: Mapping[str, Any]) -> None:
    show(row)
    logger.log_metrics(
        {k: v for k, v in row.items() if k not in ("task", "trials")}, step=row["trials"]
    )


def main() -> None:
    """Open the door; without platform= (or with platform=cpu) this machine's CPU is meant."""
    given = [word for word in sys.argv[1:] if word.startswith("platform=")]
    words = [word for word in sys.argv[1:] if word not in ("-m", "--multirun")]
    asked = not any(word.startswith(("resume=", "plot=", "-")) for word in words)
    if given == [f"platform={LOCAL}"] or (not given and asked):
        try:
            rest = [word for word in sys.argv[1:] if word not in given]
            host = [] if any(word.startswith("target=") for word in rest) else ["target=host"]
            sys.argv[1:] = [*rest, f"platform={local_platform()}", *host]
        except PrunerError as error:
            say(f"error: {error}")
            sys.exit(2)
    if any(word.startswith("network=") for word in words) and not any(
        word.startswith("policy=") for word in words
    ):
        sys.argv.append(f"policy={NETWORK_POLICY}")
    run_door("tune", tune)


if __name__ == "__main__":
    main()
