"""Time a task's best programs again, in turns, and keep the fastest.

The best of many single latencies is often the luckiest. The seconds are in ``finalists.json``; the
journal and TVM's database stay as the search wrote them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from pruner.files import as_written, read_json, read_table, write_json
from pruner.search.task_order import Estimate
from pruner.tune.measure.measurer import Outcome, never
from pruner.tune.measure.numerics import are_timings
from pruner.tune.run.database import Database, best_s, records_of
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

if TYPE_CHECKING:
    from pruner.tune.run.setup import LiveTask
    from pruner.tune.run.tune_options import RunContext

FINALISTS_FILE, ENERGY_FILE = "finalists.json", "energy.csv"
NEAR = 1.35  # times the best latency
TURNS, FEWEST_TURNS = 6, 5
FEWEST_PROGRAMS = 16  # of a task; among fewer programs the turns gain nothing (experiments/repeats)
_SHARE, _LEAST_S = 0.15, 10.0  # of the seconds of the search, or so many
_A_TASK_S = 8.0  # that the search leaves at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalists:
    """The programs of a task that were timed in turns.

    ``tried`` are their numbers in the journal, the best of the search first; ``trials`` [n] those
    that ran and were right, with ``costs_s`` [n][turn] in seconds. ``checked``: their results were
    compared with the reference.
    """

    tried: Sequence[int]
    trials: Sequence[int]
    costs_s: Sequence[Sequence[float]]
    checked: bool

    def __post_init__(self) -> None:
        """Raises `ValueError` for contents that turns never have."""
        same = len({len(costs_s) for costs_s in self.costs_s}) == 1
        if not (
            same
            and len(self.costs_s) == len(self.trials)
            and set(self.trials) <= set(self.tried)
            and all(map(are_timings, self.costs_s))
        ):
            raise ValueError("not the turns of tried programs")

    @property
    def place(self) -> int:
        """Position of the winner in ``trials``."""
        return int(np.argmin(paired_medians(np.array(self.costs_s))))

    @property
    def trial(self) -> int:
        """The winner's number in the journal."""
        return self.trials[self.place]

    @property
    def latency_s(self) -> float:
        """Median seconds of the winner."""
        return float(np.median(self.costs_s[self.place]))

    @property
    def best_of_search_s(self) -> float | None:
        """Median seconds of the best program of the search, None if it failed."""
        if self.tried[0] not in self.trials:
            return None
        return float(np.median(self.costs_s[self.trials.index(self.tried[0])]))

    def row(self) -> dict[str, Any]:
        """Return the numbers for the last line."""
        return {"trial": self.trial, "best_of_search": self.tried[0], "timed": len(self.trials)}

    def line(self) -> str:
        """Describe the choice."""
        first = self.tried[0]
        if self.trial == first:
            return f"trial {first} stays the best of {len(self.trials)}, timed in turns"
        others = f"not trial {first}, the best of the search"
        return f"trial {self.trial} is the best of {len(self.trials)}, timed in turns, {others}"


def paired_medians(costs_s: Float[np.ndarray, "program turn"]) -> Float[np.ndarray, " program"]:
    """Median over turns of each program's seconds, relative to the mean of the turn."""
    return np.median(costs_s / costs_s.mean(axis=0), axis=1)


def ranked(trials: Sequence[Trial], task: str) -> list[Trial]:
    """List a task's programs that ran and can be made again, fastest first."""
    mine = [trial for trial in trials if trial.task == task and trial.record is not None]
    ran = [trial for trial in mine if trial.latency_s < float("inf")]
    return sorted(ran, key=lambda trial: trial.latency_s)


def near_best(ran: Sequence[Trial], most: int) -> list[Trial]:
    """Cut `ranked` programs to at most `most` near the best; none of few."""
    if len(ran) < FEWEST_PROGRAMS:
        return []
    return [trial for trial in ran[:most] if trial.latency_s <= NEAR * ran[0].latency_s]


def search_s(limit_s: float, tasks: int, trials: int, begun_s: float = 0.0) -> float:
    """Return the seconds after which a run of `limit_s` ends its search, for `retime`.

    It leaves at most 8 s for each of the `tasks`, and at most half of the seconds since `begun_s`,
    the begin of this start; nothing if the `trials` are too few for finalists of all tasks.
    """
    if trials < FEWEST_PROGRAMS * tasks:
        return limit_s
    share_s = limit_s - limit_s / (1 + _SHARE)
    return limit_s - min(share_s, _A_TASK_S * tasks, max(0.0, limit_s - begun_s) / 2)


def retime(
    tasks: Sequence[LiveTask], context: RunContext, most: int, limit_s: float | None = None
) -> None:
    """Time the best programs of every task in turns; write ``finalists.json``.

    The tasks with the largest share of the time come first. The turns end after 15 % of the run's
    seconds so far (or ten seconds), at `limit_s` of the run at the latest. Programs that an earlier
    start timed are not timed again. A task has no finalists if an earlier run, or the function
    without schedule, has its best latency.
    """
    rows, found = read_trials(context.folder / JOURNAL_FILE), read_finalists(context.folder)
    begun_s, earlier, timed = context.phases.elapsed_s, bool(found), list[str]()
    until_s = begun_s + max(_LEAST_S, _SHARE * begun_s)
    is_late = partial(context.is_over, until_s if limit_s is None else min(until_s, limit_s))
    ran = {task.name: ranked(rows, task.name) for task in tasks}
    if few := sum(len(one) < FEWEST_PROGRAMS for one in ran.values()):
        context.log(
            f"{few} of {len(tasks)} tasks have fewer than {FEWEST_PROGRAMS} programs that ran: "
            "their best programs are not timed again"
        )
    for task in sorted(tasks, key=lambda one: -one.weight * one.current_best_s):
        name = task.name
        near, old = near_best(ran[name], most), found.pop(name, None)
        is_ours = near and near[0].latency_s <= task.current_best_s and task.unscheduled is None
        if len(near) < 2 or not is_ours:
            continue
        if old is not None and list(old.tried) == [trial.trial for trial in near]:
            found[name] = old
        elif (new := _timed(task, near, context, is_late)) is not None:
            found[name] = new
            timed.append(name)
            write_finalists(context.folder, found)
            context.log(f"{name}: {new.line()}")
        elif is_late() and old is not None and near[0].trial in old.tried:
            found[name] = old
    if found or earlier:
        write_finalists(context.folder, found)
    if timed and len(tasks) > 1:
        seconds = context.phases.elapsed_s - begun_s
        context.log(summary(tasks, found, timed, seconds))


def summary(
    tasks: Sequence[LiveTask],
    found: Mapping[str, Finalists],
    timed: Sequence[str],
    seconds: float,
) -> str:
    """Describe how the finalists change the estimate of all tasks."""

    def estimate(latency_s: Callable[[Finalists], float | None]) -> str:
        known = {name: latency_s(one) for name, one in found.items()}
        latencies = ((one, known.get(one.name) or one.current_best_s) for one in tasks)
        total = Estimate.of((one.weight, one.flops, best_s) for one, best_s in latencies)
        return f"{1e3 * total.latency_s:.4g} ms"

    changed = sum(found[name].trial != found[name].tried[0] for name in timed)
    return (
        f"{len(timed)} of {len(tasks)} tasks were timed again, in {seconds:.0f} s; {changed} of "
        f"them get another program. All tasks together: {estimate(lambda one: one.latency_s)}; "
        f"with the best programs of the search {estimate(lambda one: one.best_of_search_s)}, which "
        f"were {estimate(lambda _: None)} in the search"
    )


def _timed(
    task: LiveTask, near: Sequence[Trial], context: RunContext, is_late: Callable[[], bool]
) -> Finalists | None:
    """Time programs of the journal; None if too few are right or complete."""
    name = task.name
    if is_late():
        return None
    context.log(f"{name}: its {len(near)} best programs are timed again, in turns")
    outcomes = in_turns(task, near, context, TURNS, is_late, FEWEST_TURNS)
    if context.interrupted():
        return None
    ran = [n for n, outcome in enumerate(outcomes) if outcome.error is None]
    turns = min((len(outcomes[n].costs_s) for n in ran), default=0)
    if turns < FEWEST_TURNS and is_late():
        context.log(f"{name}: {turns} turns are too few; the best of the search stays")
        return None
    if len(ran) < 2:
        context.log(f"{name}: {len(ran)} of them ran; the best of the search stays")
        return None
    return Finalists(
        tried=[trial.trial for trial in near],
        trials=[near[n].trial for n in ran],
        costs_s=[list(outcomes[n].costs_s) for n in ran],
        checked=all(outcomes[n].checked for n in ran),
    )


def in_turns(
    task: LiveTask,
    trials: Sequence[Trial],
    context: RunContext,
    turns: int,
    is_late: Callable[[], bool] = never,
    fewest: int = 1,
) -> list[Outcome]:
    """Build journal programs again, time and check them in turns.

    See :meth:`~pruner.tune.measure.measurer.DeviceMeasurer.in_turns`.
    """
    module, target = task.workload.module, context.platform.target
    with context.phases.time("instantiate"):
        made = [context.database.scheduled(module, one.record or "", target) for one in trials]
    check = task.find_check(lambda: context.interrupted() or is_late())
    how = turns, context.interrupted, is_late, fewest
    return context.measurer.in_turns(made, task.arguments, check, *how)


def write_finalists(folder: Path, found: Mapping[str, Finalists]) -> None:
    """Write the finalists of every task."""
    content = {name: asdict(one) for name, one in found.items()}
    write_json(folder / FINALISTS_FILE, content, indent=1)


def read_finalists(folder: Path) -> dict[str, Finalists]:
    """Read the finalists of every task; raise `DataError` where damaged."""
    path = folder / FINALISTS_FILE
    if not path.is_file():
        return {}
    with as_written(path):
        return {name: Finalists(**row) for name, row in read_json(path, dict).items()}


def present(folder: Path, trials: Sequence[Trial]) -> dict[str, Finalists]:
    """Read the finalists of the tasks whose best program was compared."""
    known = {(trial.task, trial.trial) for trial in trials}  # no damaged row of the journal
    return {
        name: one
        for name, one in read_finalists(folder).items()
        if known.issuperset((name, number) for number in one.tried)
        and _compared(one.tried, trials, name)
    }


def _compared(numbers: Sequence[int], trials: Sequence[Trial], task: str) -> bool:
    """Check that a search's best program was compared, also after more trials."""
    best = ranked(trials, task)[:1]
    return bool(best) and best[0].trial in numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrial:
    """A task's kernel, unless a record of TVM's database beats ``best_s`` seconds."""

    trial: Trial
    best_s: float = 0.0


def chosen_trials(folder: Path, trials: Sequence[Trial]) -> dict[str, KernelTrial]:
    """Return the choices of finalists and energies by task; raise `DataError` where damaged."""
    by_number = {trial.trial: trial for trial in trials}
    out = {
        name: KernelTrial(trial=by_number[one.trial], best_s=by_number[one.tried[0]].latency_s)
        for name, one in present(folder, trials).items()
    }
    path = folder / ENERGY_FILE
    with as_written(path):
        rows = read_table(path)
        for row in [row for row in rows if row["chosen"] == "1"]:
            task = row["task"]
            if _compared([int(one["trial"]) for one in rows if one["task"] == task], trials, task):
                out[task] = KernelTrial(trial=by_number[int(row["trial"])])
    return out


def best_module(
    database: Database, module: Any, target: Any, chosen: KernelTrial | None
) -> Any | None:
    """Return a task's module by the chosen trial, else by TVM's best record.

    The best record decides, too, where it is faster than the search's best program: it is of
    another run, or the function without schedule.
    """
    if chosen is not None and _decides(chosen, database, module, target):
        return database.scheduled(module, chosen.trial.record or "", target)
    return database.best(module, target)


def copy_chosen(
    run: Path, source: Path, modules: Mapping[str, Any], target: Any, folder: Path
) -> bool:
    """Copy the records of a run's chosen trials to `folder`; False without any.

    They are the trials that `best_module` would take, with the database in `source`.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier deployment
    chosen = chosen_trials(run, read_trials(run / JOURNAL_FILE))
    if not chosen:
        return False
    database = Database.read(source)
    names = [
        name
        for name, one in chosen.items()
        if name in modules and _decides(one, database, modules[name], target)
    ]
    if names:
        folder.mkdir(parents=True, exist_ok=True)
        copy = Database(folder)
        for name in names:
            copy.commit_json(modules[name], json.loads(chosen[name].trial.record or ""))
    return bool(names)


def _decides(chosen: KernelTrial, database: Database, module: Any, target: Any) -> bool:
    return best_s(records_of(database.tvm_database, module, target)) >= chosen.best_s
