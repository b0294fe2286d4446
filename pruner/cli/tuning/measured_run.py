"""Run a tuning that measures, and show it; plot earlier runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, choice, plain, several
from pruner.cli.shared.output import is_quiet, say
from pruner.cli.shared.progress import clock
from pruner.cli.shared.runs import open_run, save_config
from pruner.cli.tuning.interrupts import Interrupted, Interrupts
from pruner.cli.tuning.network import (
    deployed,
    estimated,
    milliseconds,
    network_label,
    run_label,
    tasks_to_tune,
    tuned_workloads,
)
from pruner.cli.tuning.read_options import tune_options
from pruner.errors import PrunerError
from pruner.files import METRICS_FILE, as_written, load_metrics, save_metrics
from pruner.models.training.fit import cpu_threads
from pruner.study.tuning_plots import draw, load_run, time_table
from pruner.tune.compiling import linker
from pruner.tune.deploy.built_files import DEPLOY_FILE
from pruner.tune.run.budget import Effort, TuneBudget
from pruner.tune.run.finalists import search_s
from pruner.tune.run.journal import JOURNAL_FILE
from pruner.tune.run.result import Tuned
from pruner.tune.run.tune_options import TuneOptions
from pruner.tune.run.tuning import tune
from pruner.tune.workloads import load_workloads

_NEARLY = 0.9  # share of its seconds from which a run counts as finished
Show = Callable[[Mapping[str, Any]], None]


def tune_run(config: DictConfig, effort: Effort, earlier: Path | None) -> dict[str, Any]:
    """Tune operators or a network; raise `Interrupted` if ended early."""
    with cpu_threads(config.num_threads):
        return _run(config, effort, earlier)


def _run(config: DictConfig, effort: Effort, earlier: Path | None) -> dict[str, Any]:
    workloads = [] if config.network is not None else load_workloads(plain(config.workload))
    options = tune_options(config)
    if config.network is not None:
        if config.deploy and not config.compile_only:
            linker(options.platform.target)  # refused before any work
        label = network_label(config)
    else:
        label = workloads[0].name if len(workloads) == 1 else f"{len(workloads)}-tasks"
    folder = earlier or open_run(config, "tune", run_label(config, label))
    if config.network is not None:
        tasks = tasks_to_tune(config, options.platform, folder)
        workloads = tuned_workloads(config, tasks)
        options = replace(options, budget=effort.budget(plain(config.budget), len(workloads)))
        say(budget_line(options.budget, build=config.deploy and not config.compile_only))
    if earlier is not None:
        _check_unfinished(earlier, config, options, len(workloads))
        save_config(earlier, config)  # a later start continues with the present budget
    tags = [config.platform.name, choice("policy")]
    about = loggers.About(config=plain(config), tags=tags)
    logger = build(config.logger)(folder=folder, name=folder.name, about=about)
    interrupts, budget = Interrupts(say), options.budget
    display: AbstractContextManager[Show]  # a network's rows together, operators' singly
    if config.network is not None:
        display = network_display(budget)
    else:
        display = nullcontext(partial(say_operator, budget, Pace(budget)))
    try:
        with interrupts as asked, display as show:

            def report(row: Mapping[str, Any]) -> None:
                show(row)
                numbers = {k: v for k, v in row.items() if k not in ("task", "trials")}
                logger.log_metrics(numbers, step=row["trials"])

            tuned = tune(workloads, options, folder, log=say, report=report, interrupted=asked)
        result = tuned.metrics() | estimated(config, tuned)
        rows = [{"task": name, **task} for name, task in result["tasks"].items()]
        loggers.report(logger, result, rows, under="tuned")
    finally:
        loggers.close(logger)
    nothing = not (result["trials"] or config.compile_only)
    if interrupts.caught is not None or nothing:
        result["interrupted"] = True
    save_metrics(folder, result)
    if not nothing:
        say(time_table(result["seconds"]))
    if result["trials"] and interrupts.caught is None:
        draw([load_run(folder)], folder)
        _log_verdicts(tuned)
    if interrupts.caught is not None:
        ended = "nothing measured yet" if nothing else "ended early"
        say(f"{ended}; python tune.py resume={folder} continues")
        if config.network is not None and result["trials"]:
            say(f"pruner deploy run={folder} builds the network with the results so far")
        raise Interrupted(result, interrupts.exit_code)
    if nothing:
        more = "" if options.budget.seconds is None else " budget.seconds=..."
        raise PrunerError(
            f"no program was measured within {result['total_seconds']:.0f} s, and the workers need "
            f"some of them to start; python tune.py resume={folder}{more} continues"
        )
    if config.compile_only:
        say(
            f"{result['compiled']} programs compile, none was run: {folder}/candidates; "
            f"pruner deploy run={folder} makes libraries"
        )
    if config.network is not None and config.deploy and not config.compile_only:
        result = deployed(config, folder, result)
    return result


def _log_verdicts(tuned: Tuned) -> None:
    final = tuned.final
    for task in tuned.tasks:
        say(task.verdict())
        if task.kernel is not None:
            best = None if final is None else final.best(task.name)
            what = f" (trial {best.trial.trial}, least {final.objective})" if final and best else ""
            say(f"  kernel{what}: {task.kernel} (docs/library.md shows how to call it)")
    if tuned.unsuccessful:
        what = "without a program that is known to be correct"
        say(f"{len(tuned.unsuccessful)} tasks {what}: {', '.join(tuned.unsuccessful)}")
    if all(task.all_failed for task in tuned.tasks):
        failed = "; ".join(task.verdict() for task in tuned.tasks)
        raise PrunerError(f"nothing was tuned: {failed}; see {tuned.folder / JOURNAL_FILE}")
    if final is not None:
        for line in final.lines():
            say(line)
        if final.objective.has_front and final.has_chosen:
            from pruner.study.pareto import draw_fronts, write_front_report  # imports pandas

            say(f"front: {draw_fronts(tuned.folder)}, {write_front_report(tuned.folder)}")


def _check_unfinished(folder: Path, config: DictConfig, options: TuneOptions, tasks: int) -> None:
    done, budget, more = load_metrics(folder), options.budget, None
    limit_s = budget.seconds
    if limit_s is not None and options.measure.finalists:  # they may need less than their share
        limit_s = search_s(limit_s, tasks, budget.trials)
    if done is None or "seconds" not in done or done.get("interrupted"):
        return
    with as_written(folder / METRICS_FILE):
        if options.compile_only:
            if done["compiled"] + done["failed"] < budget.trials:  # its time was over
                return
            raise PrunerError(
                f"resume={folder}: this run is finished ({done['compiled']} programs compile); "
                "start a new one for more"
            )
        if done["trials"] >= budget.trials:
            more = "trials"
        elif limit_s is not None and done["total_seconds"] >= _NEARLY * limit_s:
            more = "seconds"
    if more is not None:
        library = ""
        if config.network is not None and not (folder / DEPLOY_FILE).is_file():
            library = f", or build its network with pruner deploy run={folder}"
        raise PrunerError(
            f"resume={folder}: this run is finished ({done['trials']} trials, "
            f"{done['total_seconds']:.0f} s); give more with budget.{more}={library}"
        )


def plot(config: DictConfig) -> dict[str, Any]:
    """Draw curves and times of earlier runs into a new folder."""
    runs = [load_run(Path(name)) for name in several(config.plot)]
    if not runs:
        raise PrunerError("plot=[]: name at least one run folder")
    folder = open_run(config, "tune", "plot")
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


class Pace:
    """Estimates the seconds left of a run, from its first seen row."""

    def __init__(self, budget: TuneBudget) -> None:
        self._budget = budget
        self._first: tuple[int, float] | None = None

    def left_s(self, trials: int, seconds: float) -> float | None:
        """Return the seconds left, None while unknown."""
        limits = [] if self._budget.seconds is None else [self._budget.seconds - seconds]
        if self._first is None:
            self._first = trials, seconds
        elif trials > self._first[0]:
            pace_s = (seconds - self._first[1]) / (trials - self._first[0])
            limits.append(pace_s * (self._budget.trials - trials))
        return max(0.0, min(limits)) if limits else None


def network_cells(row: Mapping[str, Any], budget: TuneBudget, left_s: float | None) -> list[str]:
    """Format a network's state after a round, in the order of :data:`HEADINGS`."""
    share = row["measured_share"]
    return [
        milliseconds(row["estimate_s"]),
        f"{share:.0%}",
        f"{row['trials']}/{budget.trials}",
        str(row["failures"]),
        clock(row["seconds"]),
        "?" if left_s is None else clock(left_s),
        f"{row['task']} {milliseconds(row['best_latency_s'])}",
    ]


HEADINGS = ("network", "measured", "trials", "failed", "spent", "left", "task")


def line(cells: list[str]) -> str:
    """Format cells as a line of a log."""
    pairs = zip(HEADINGS, cells, strict=True)
    return "  ".join(f"{name} {cell}" for name, cell in pairs)


def say_operator(budget: TuneBudget, pace: Pace, row: Mapping[str, Any]) -> None:
    """Print a line for a round of single operators."""
    left_s = pace.left_s(row["trials"], row["seconds"])
    left = "" if left_s is None else f"  left {clock(left_s)}"
    say(
        f"[{row['trials']}/{budget.trials}] {row['task']}: "
        f"best {milliseconds(row['best_latency_s'])}"
        f"  failed {row['failed']}  {row['seconds']:.1f} s{left}"
    )


def budget_line(budget: TuneBudget, *, build: bool) -> str:
    """Describe the end of a network's run and its counted seconds."""
    after = ", and building, checking and timing the network comes after it" if build else ""
    seconds = "" if budget.seconds is None else f" or {budget.seconds:g} s"
    return (
        f"budget: {budget.trials} programs{seconds} of drafting, measuring and learning; "
        f"the import is not in it{after}"
    )


@contextmanager
def network_display(budget: TuneBudget, console: Console | None = None) -> Iterator[Show]:
    """Show rows of the loop: a redrawn table, or a line each."""
    console, pace = console or Console(stderr=True, quiet=is_quiet()), Pace(budget)

    def cells(row: Mapping[str, Any]) -> list[str]:
        return network_cells(row, budget, pace.left_s(row["trials"], row["seconds"]))

    if not console.is_terminal:
        yield lambda row: say(line(cells(row)))
        return
    with Live(console=console, auto_refresh=False) as live:

        def draw(row: Mapping[str, Any]) -> None:
            table = Table(*HEADINGS)
            table.add_row(*cells(row))
            live.update(table, refresh=True)

        yield draw
