"""``python tune.py``: tune programs on real hardware."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from pruner.cli import loggers
from pruner.cli.door import run_door
from pruner.cli.options import build, choice, plain
from pruner.cli.output import say
from pruner.cli.runs import new_run_folder, resumed_config, save_config
from pruner.cli.tune_plan import Plan, load_draft, make_plan
from pruner.errors import PrunerError
from pruner.files import load_metrics, save_metrics
from pruner.study.tuning import TaskOutcome, draw, load_run, summary, time_table
from pruner.tune.measure.machine import local_platform
from pruner.tune.measure.measurer import Measurer, Outcome
from pruner.tune.phases import Phases
from pruner.tune.rivals.ansor import tune_with_ansor
from pruner.tune.rivals.settings import Ansor, MetaSchedule
from pruner.tune.run.database import Database
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials
from pruner.tune.run.loop import LiveTask, TuneBudget, TuningRun
from pruner.tune.run.setup import SearchOptions, prepare
from pruner.tune.workloads import Workload, load_workloads

LOCAL = "cpu"  # platform=cpu: the described CPU that fits this machine


def tune(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    if config.plot is not None:
        return plot(config)
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed_config(earlier, config)
        if load_metrics(earlier) is not None:
            raise PrunerError(f"resume={earlier}: this run is finished (metrics.json)")
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    workloads = load_workloads(plain(config.workload))
    plan = make_plan(config)
    folder = earlier or _open_run(config, workloads)
    tags = [config.platform.name, choice("policy")]
    about = loggers.About(config=plain(config), tags=tags)
    logger = build(config.logger)(folder=folder, name=folder.name, about=about)
    try:
        result = _tune(config, plan, workloads, folder, logger)
        tasks = [{"task": name, **task} for name, task in result["tasks"].items()]
        loggers.report(logger, result, tasks, under="tuned")
    finally:
        loggers.close(logger)
    save_metrics(folder, result)
    say(time_table(result["seconds"]))
    if result["trials"]:
        draw([load_run(folder)], folder)
    return result


def plot(config: DictConfig) -> dict[str, Any]:
    """Draw the curves and the time of earlier runs into a new folder."""
    named = plain(config.plot)
    runs = [load_run(Path(name)) for name in ([named] if isinstance(named, str) else named)]
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


def _open_run(config: DictConfig, workloads: Sequence[Workload]) -> Path:
    what = workloads[0].name if len(workloads) == 1 else f"{len(workloads)}-tasks"
    label = f"{config.platform.name}-{what}-{choice('policy')}"
    folder = new_run_folder(Path(config.outputs), "tune", config.run_id, label)
    save_config(folder, config)
    return folder


def _tune(
    config: DictConfig, plan: Plan, workloads: Sequence[Workload], folder: Path, logger: Any
) -> dict[str, Any]:
    platform, policy, budget = plan.platform, plan.policy, plan.budget
    if isinstance(policy, Ansor):
        return _ansor(config, plan, workloads, folder, logger)
    work_dir = Path(config.work_dir or folder)
    work_dir.mkdir(parents=True, exist_ok=True)
    phases, database = Phases(), Database(work_dir)
    options = SearchOptions(
        policy=policy,
        analyzer=None if isinstance(policy, MetaSchedule) else load_draft(config, platform),
        model=plan.model,
        platform_name=config.platform.name,
        seed=config.seed,
        replay_only=config.spaces == "replay",
    )
    with Measurer(platform, plan.settings, phases) as measurer:
        prepared = prepare(
            workloads,
            platform,
            options,
            measurer,
            budget=budget,
            database=database,
            phases=phases,
            folder=folder,
            check=config.measure.check and not config.compile_only,
            tell=say,
        )
        if config.compile_only:
            return _compiled(prepared.tasks, measurer, phases, budget, folder)
        run = TuningRun(
            prepared.tasks,
            measurer,
            platform,
            folder=folder,
            database=database,
            phases=phases,
            budget=budget,
            order=config.task_order,
            fixed=prepared.fixed,
            report=partial(_report, logger, budget),
        )
        run.run()
    found = read_trials(folder / JOURNAL_FILE)
    outcomes = [
        TaskOutcome.of(
            task.workload,
            [trial for trial in found if trial.task == task.workload.name],
            refused=task.search.refused,
            exhausted=task.exhausted,
        )
        for task in run.tasks
    ]
    for done in (outcome for outcome in outcomes if outcome.exhausted):
        say(f"{done.name} has no programs left after {done.trials} trials")
    return summary(outcomes, phases.seconds(), folder, work_dir)


def _compiled(
    tasks: Sequence[LiveTask],
    measurer: Measurer,
    phases: Phases,
    budget: TuneBudget,
    folder: Path,
) -> dict[str, Any]:
    """Build what each task's search proposes first; nothing runs, nothing is learned."""
    outcomes: list[Outcome] = []
    share = -(-budget.trials // len(tasks))
    for task in tasks:
        candidates = task.search.propose(min(share, budget.trials - len(outcomes)))
        outcomes += measurer.build_only(candidates, task.arguments)
        say(f"{task.workload.name}: {len(candidates)} programs compiled")
    failures = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    return {
        "best_latency_s": None,
        "trials": 0,
        "compiled": len(outcomes) - failures.total(),
        "failed": failures.total(),
        "failures": dict(failures),
        "refused_before_build": sum(task.search.refused for task in tasks),
        "tasks": {},
        "seconds": phases.seconds(),
        "total_seconds": phases.elapsed_s,
        "run_dir": str(folder),
    }


def _ansor(
    config: DictConfig, plan: Plan, workloads: Sequence[Workload], folder: Path, logger: Any
) -> dict[str, Any]:
    if len(workloads) != 1:
        raise PrunerError("policy=ansor_tvm tunes one operator a run; choose one workload")
    (workload,), budget = workloads, plan.budget
    best_s = float("inf")

    def report(trial: Trial) -> None:
        nonlocal best_s
        best_s = min(best_s, trial.latency_s)
        if trial.trial % budget.batch == 0 or trial.trial == budget.trials:
            row = {"best_latency_s": best_s, "seconds": trial.elapsed_s, "failed": 0}
            _report(logger, budget, {"task": workload.name, "trials": trial.trial, **row})

    seconds = tune_with_ansor(
        workload,
        plan.platform,
        plan.policy,
        plan.settings,
        budget=budget,
        seed=config.seed,
        folder=folder,
        report=report,
    )
    outcome = TaskOutcome.of(workload, read_trials(folder / JOURNAL_FILE))
    return summary([outcome], seconds, folder, folder)


def _report(logger: Any, budget: TuneBudget, row: Mapping[str, Any]) -> None:
    best_ms = 1e3 * row["best_latency_s"]
    say(
        f"[{row['trials']}/{budget.trials}] {row['task']}: best {best_ms:.4g} ms"
        f"  failed {row['failed']}  {row['seconds']:.1f} s"
    )
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
    run_door("tune", tune)


if __name__ == "__main__":
    main()
