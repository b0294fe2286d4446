"""Time a task's best programs again, in turns, and keep the fastest.

The search times each program once, at another moment than the others. The best of many such
latencies is often the luckiest one. So at the end of a run the programs within 5 % of the best one
are timed in turns: a disturbance then affects all programs alike. Their seconds are kept in
``finalists.json``; the journal and TVM's database stay as the search wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from pruner.files import as_written, read_json, write_json
from pruner.search.history import Candidate
from pruner.tune.run.database import Database, measured_s, records_of
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

if TYPE_CHECKING:
    from pruner.tune.run.setup import LiveTask
    from pruner.tune.run.tune_options import RunContext

FINALISTS_FILE = "finalists.json"
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


def near_best(trials: Sequence[Trial], most: int) -> list[Trial]:
    """List at most `most` programs within 5 % of the best, fastest first."""
    ran = [trial for trial in trials if trial.latency_s < float("inf") and trial.record is not None]
    ran.sort(key=lambda trial: trial.latency_s)
    return [trial for trial in ran[:most] if trial.latency_s <= NEAR * ran[0].latency_s]


def retime(tasks: Sequence[LiveTask], context: RunContext, most: int) -> None:
    """Time the best programs of every task in turns; write ``finalists.json``.

    Programs that an earlier start timed are not timed again. A task has no finalists if an earlier
    run, or the function without schedule, has its best latency.
    """
    rows = read_trials(context.folder / JOURNAL_FILE)
    known, found = read_finalists(context.folder), dict[str, Finalists]()
    for task in tasks:
        name = task.workload.name
        near = near_best([row for row in rows if row.task == name], most)
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
    context.log(f"{name}: its {len(near)} best programs are timed again, in turns")
    check, candidates = task.find_check(), []
    for trial in near:
        schedule = context.database.scheduled(
            task.workload.module, json.loads(trial.record or ""), context.platform.target
        )
        decisions = np.array(trial.decisions, np.int64)
        candidates.append(Candidate(space=trial.space, decisions=decisions, schedule=schedule))
    outcomes = context.measurer.in_turns(candidates, task.arguments, check, TURNS)
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


def read_finalists(folder: Path) -> dict[str, Finalists]:
    """Read the finalists of every task; none without a file.

    Raises:
        DataError: the file is damaged; the message names it.
    """
    path = folder / FINALISTS_FILE
    if not path.is_file():
        return {}
    with as_written(path):
        return {name: Finalists(**row) for name, row in read_json(path, dict).items()}


def present(folder: Path, trials: Sequence[Trial]) -> dict[str, Finalists]:
    """Read the finalists of the tasks whose best program they have.

    After more trials the best program of the search may be another one, which was not timed in
    turns; then the search decides.
    """
    found = read_finalists(folder)
    for name in list(found):
        near = near_best([trial for trial in trials if trial.task == name], 1)
        if not near or near[0].trial not in found[name].tried:
            del found[name]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The record of a winner, and the best latency of the search in seconds."""

    record: Any
    best_s: float


def winners(folder: Path) -> dict[str, Winner]:
    """Return the winner of every task that has finalists."""
    if not (folder / FINALISTS_FILE).is_file():  # before the journal, which may be long
        return {}
    trials = read_trials(folder / JOURNAL_FILE)
    by_number = {trial.trial: trial for trial in trials}
    return {
        name: Winner(
            record=json.loads(by_number[one.trial].record or ""),
            best_s=by_number[one.tried[0]].latency_s,
        )
        for name, one in present(folder, trials).items()
    }


def best_module(database: Database, module: Any, target: Any, winner: Winner | None) -> Any | None:
    """Return a task's module by the winner, else by TVM's best record.

    The best record decides, too, where it is faster than the search's best program: it is of
    another run, or the function without schedule.
    """
    if winner is None:
        return database.best(module, target)
    known = records_of(database.tvm_database, module, target)
    if min(map(measured_s, known), default=float("inf")) < winner.best_s:
        return database.best(module, target)
    return database.scheduled(module, winner.record, target).mod
