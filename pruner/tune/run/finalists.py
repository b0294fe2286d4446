"""Time a task's best programs again, in turns, and keep the fastest.

The best of many single latencies is often the luckiest. The seconds are in ``finalists.json``; the
journal and TVM's database stay as the search wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from pruner.files import as_written, read_json, read_table, write_json
from pruner.tune.run.database import Database, measured_s, records_of
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

if TYPE_CHECKING:
    from pruner.tune.measure.measurer import Outcome
    from pruner.tune.run.setup import LiveTask
    from pruner.tune.run.tune_options import RunContext

FINALISTS_FILE, ENERGY_FILE = "finalists.json", "energy.csv"
NEAR = 1.05  # times the best latency; experiments/repeats
TURNS = 10


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
    """Cut `ranked` programs to at most `most` within 5 % of the best."""
    return [trial for trial in ran[:most] if trial.latency_s <= NEAR * ran[0].latency_s]


def retime(tasks: Sequence[LiveTask], context: RunContext, most: int) -> None:
    """Time the best programs of every task in turns; write ``finalists.json``.

    Programs that an earlier start timed are not timed again. A task has no finalists if an earlier
    run, or the function without schedule, has its best latency. If the run was asked to end, tasks
    that are not timed yet get no entry: the next start times them.
    """
    rows = read_trials(context.folder / JOURNAL_FILE)
    known, found = read_finalists(context.folder), dict[str, Finalists]()
    for task in tasks:
        name = task.workload.name
        near = near_best(ranked(rows, name), most)
        if len(near) < 2 or task.unscheduled is not None:
            continue
        if near[0].latency_s > task.current_best_s:
            continue
        if name in known and list(known[name].tried) == [trial.trial for trial in near]:
            found[name] = known[name]
        elif (timed := _timed(task, near, context)) is not None:
            found[name] = timed
            context.log(f"{name}: {timed.line()}")
    if found or known:
        content = {name: asdict(finalists) for name, finalists in found.items()}
        write_json(context.folder / FINALISTS_FILE, content, indent=1)


def _timed(task: LiveTask, near: Sequence[Trial], context: RunContext) -> Finalists | None:
    """Time programs of the journal; None if fewer than two are right."""
    name = task.workload.name
    if context.interrupted():
        return None
    context.log(f"{name}: its {len(near)} best programs are timed again, in turns")
    outcomes = in_turns(task, near, context, TURNS)
    if context.interrupted():
        return None
    ran = [n for n, outcome in enumerate(outcomes) if outcome.error is None]
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
    task: LiveTask, trials: Sequence[Trial], context: RunContext, turns: int
) -> list[Outcome]:
    """Build journal programs again, time and check them in turns; none if interrupted."""
    module, target = task.workload.module, context.platform.target
    made = [context.database.scheduled(module, one.record or "", target) for one in trials]
    check = task.find_check()
    return context.measurer.in_turns(made, task.arguments, check, turns, context.interrupted)


def read_finalists(folder: Path) -> dict[str, Finalists]:
    """Read the finalists of every task; raise `DataError` where damaged."""
    path = folder / FINALISTS_FILE
    if not path.is_file():
        return {}
    with as_written(path):
        return {name: Finalists(**row) for name, row in read_json(path, dict).items()}


def present(folder: Path, trials: Sequence[Trial]) -> dict[str, Finalists]:
    """Read the finalists of the tasks whose best program was compared."""
    found = read_finalists(folder)
    return {name: one for name, one in found.items() if _compared(one.tried, trials, name)}


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
    if chosen is not None:
        known = records_of(database.tvm_database, module, target)
        if min(map(measured_s, known), default=float("inf")) >= chosen.best_s:
            return database.scheduled(module, chosen.trial.record or "", target)
    return database.best(module, target)
