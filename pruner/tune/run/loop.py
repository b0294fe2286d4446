"""The tuning loop: propose, instantiate, build, measure, learn, next task."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pruner.errors import DataError, PrunerError
from pruner.files import JsonLines
from pruner.tune.measure.measurer import Candidate, Check, Outcome
from pruner.tune.measure.numerics import Arguments
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.database import record_json
from pruner.tune.run.estimate import Estimate, has_settled
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials
from pruner.tune.run.learning import SharedModel
from pruner.tune.run.live_search import LiveSearch
from pruner.tune.run.options import RunContext
from pruner.tune.run.snapshot import OLD_FILE, SNAPSHOT_FILE, load_state, save_state
from pruner.tune.run.task_order import Order, TaskProgress, next_task, round_size, stays_behind
from pruner.tune.workloads import Workload

OnBatch = Callable[[Mapping[str, Any]], None]  # gets a row of numbers after every batch


@dataclass(slots=True, kw_only=True, eq=False)
class LiveTask:
    """One task of a run with its search and what came of it.

    ``make_search`` makes its search when the task is begun, ``open_search`` one that takes back the
    state of an earlier start, ``find_check`` what its results are compared with (None: nothing is
    checked). ``best_s`` is the best latency after every batch;
    ``exhausted`` once its search has no programs left, ``alone`` once it is known to be like no
    other task.
    """

    workload: Workload
    flops: float
    arguments: Arguments
    make_search: Callable[[], LiveSearch]
    open_search: Callable[[], LiveSearch]
    find_check: Callable[[], Check | None]
    made: LiveSearch | None = None  # its search, once it is begun
    untuned_s: float | None = None  # without schedule; None where that was not timed
    best_s: list[float] = field(default_factory=list)
    current_best_s: float = float("inf")
    trials: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    exhausted: bool = False
    alone: bool = False

    @property
    def search(self) -> LiveSearch:
        """Its search; the first question begins the task, which takes a second or more."""
        if self.made is None:
            self.made = self.make_search()
        return self.made

    @property
    def _known_s(self) -> list[float]:
        """What earlier runs know of a task that this one has not tried."""
        return [self.current_best_s] if self.current_best_s != float("inf") else []

    @property
    def progress(self) -> TaskProgress:
        """For the task order."""
        return TaskProgress(
            weight=self.workload.weight,
            flops=self.flops,
            best_s=self.best_s or self._known_s,
            operator=self.workload.operator,
            alone=self.alone,
            exhausted=self.exhausted,
        )


class Prepared(Protocol):
    """The tasks of a run and what they share: see :mod:`pruner.tune.run.setup`."""

    tasks: list[LiveTask]
    shared: SharedModel | None
    savable: bool

    def begin_anew(self) -> None:
        """Let the shared model forget everything."""

    def draft_all(self) -> None:
        """Find what tasks that are not begun measure first, where that is wanted."""


class _Stopped(Exception):
    """The run was asked to end, or its time is over."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Round:
    number: int
    task: int
    candidates: list[Candidate]


class TuningRun:
    """All tasks of one run, in one folder; a new object on the same folder goes on with it."""

    def __init__(
        self,
        prepared: Prepared,
        context: RunContext,
        *,
        budget: TuneBudget,
        order: Order = "gradient",
        report: OnBatch,
    ) -> None:
        folder = context.folder
        self._prepared, self.tasks, self._context = prepared, list(prepared.tasks), context
        self._measurer, self._phases = context.measurer, context.phases
        self._budget, self._order, self._report = budget, order, report
        self._journal = JsonLines(folder / JOURNAL_FILE)
        self._rows = read_trials(folder / JOURNAL_FILE, context.tell)  # of earlier starts
        self._snapshot = folder / SNAPSHOT_FILE
        self._last_trial = max((row.trial for row in self._rows), default=0)
        self._programs = {task.workload.name: task.workload.fingerprint for task in self.tasks}
        self._done = {(row.batch, row.position): row for row in self._rows}
        self._number = 0
        self._waiting: list[_Round] = []
        self._estimates_s: list[float] = []  # of all tasks, since each was tried
        self._pace_s: float | None = None  # seconds a trial of the latest rounds
        self._since_s = 0.0  # when the latest round was over
        self._take_up()

    @property
    def trials(self) -> int:
        """Candidates measured so far, failures included."""
        return sum(task.trials for task in self.tasks)

    def run(self) -> None:
        """Draft where that is wanted, then spend the budget, or what of it there is before the run
        is asked to end.

        Raises:
            PrunerError: no program of a batch had its turn, since there is no device or worker; or
                no task has a program to try.
        """
        lag = self._measurer.lag if self._prepared.savable else 0
        try:
            self._prepared.draft_all()
            self._since_s, self._phases.check = self._phases.elapsed_s, self._raise_if_stopped
            while self._waiting or self._propose():
                self._measure(self._waiting.pop(0), lag)
            self._tell_standstill()
        except _Stopped:
            pass  # what was begun is lost as by a kill: the last snapshot does not know of it
        finally:
            self._phases.check = lambda: None
        if not self.trials and not self._stopped():
            raise PrunerError("no task has a program that could be tried; see the lines above")

    def _tell_standstill(self) -> None:
        """Why it ends before its trials are spent."""
        patience, tolerance = self._budget.patience, self._budget.tolerance
        if self._settled and self.trials < self._budget.trials and not self._stopped():
            self._context.tell(
                f"{patience} rounds changed the total time by less than {tolerance:.1%}: the "
                f"run ends after {self.trials} of {self._budget.trials} trials; a larger "
                "budget.patience= continues it"
            )

    @property
    def _settled(self) -> bool:
        return has_settled(self._estimates_s, self._budget.patience, self._budget.tolerance)

    @property
    def estimate(self) -> Estimate:
        """Of all tasks together."""
        return Estimate.of(task.progress for task in self.tasks)

    def _stopped(self) -> bool:
        """Whether it was asked to end, or its time is over."""
        return self._context.is_over(self._budget.seconds)

    def _raise_if_stopped(self) -> None:
        if self._stopped():
            raise _Stopped

    def _measure(self, current: _Round, lag: int) -> None:
        """One batch, with the next one proposed while it is built where `lag` says so."""
        missing = [
            candidate
            for position, candidate in enumerate(current.candidates)
            if (current.number, position) not in self._done
        ]
        with self._phases.time("instantiate"):
            batch = self._measurer.begin(missing, self.tasks[current.task].arguments)
        if lag and not self._waiting:
            self._propose(current)
        self._finish(current, batch)
        spent_s, self._since_s = self._phases.elapsed_s - self._since_s, self._phases.elapsed_s
        if missing:
            pace_s = spent_s / len(missing)
            self._pace_s = pace_s if self._pace_s is None else (self._pace_s + pace_s) / 2

    def _propose(self, current: _Round | None = None) -> bool:
        """Choose the next batch and write down that it was chosen; False where nothing is left.

        ``current`` is the batch that is being measured meanwhile.
        """
        building = len(current.candidates) if current else 0
        left = min(self._budget.trials - self.trials, self._affordable()) - building
        budget = self._budget
        if self._settled:
            return False
        while left > 0 and not self._stopped():
            progress = self._progress(current)
            index = next_task(self._order, progress)
            if index is None:
                return False
            first = not progress[index].best_s
            size = round_size(budget.batch, budget.trials, len(self.tasks), first=first)
            if first:
                name = self.tasks[index].workload.name
                self._context.tell(f"{name}: choosing its first {min(left, size)} programs")
            candidates = self._chosen(self.tasks[index], min(left, size))
            if candidates:
                self._number += 1
                new = _Round(number=self._number, task=index, candidates=candidates[:left])
                self._waiting.append(new)
                self._save([current, new] if current else [new])
                return True
            self.tasks[index].exhausted = True
        return False

    def _affordable(self) -> int:
        """Trials that the time left is enough for, at the pace of the latest rounds."""
        if self._budget.seconds is None or self._pace_s is None:
            return self._budget.trials
        return int((self._budget.seconds - self._phases.elapsed_s) / self._pace_s)

    def _chosen(self, task: LiveTask, num: int) -> list[Candidate]:
        """What its search proposes; of several tasks one without programs costs only itself."""
        try:
            return task.search.propose(num)
        except PrunerError as error:
            if len(self.tasks) == 1 or task.trials:
                raise
            self._context.tell(f"{task.workload.name}: left out, {error}")
            return []

    def _progress(self, current: _Round | None) -> list[TaskProgress]:
        """Of all tasks; the batch that is being measured counts, as if it found nothing better."""
        found = [task.progress for task in self.tasks]
        if current is not None:
            task = self.tasks[current.task]
            best_s = [*task.best_s, task.current_best_s]
            found[current.task] = replace(found[current.task], best_s=best_s, awaited=True)
        return found

    def _finish(self, current: _Round, batch: Any) -> None:
        """Measure a batch; every result is on disk before the next is asked for."""
        task = self.tasks[current.task]
        places = [
            position
            for position in range(len(current.candidates))
            if (current.number, position) not in self._done
        ]
        outcomes = {
            position: _outcome(self._done[current.number, position])
            for position in range(len(current.candidates))
            if position not in places
        }
        found = self._measurer.results(
            batch,
            lambda _, outcome: outcome.latency_s < task.current_best_s,
            task.find_check(),
            self._stopped,
        )
        held: list[int] = []  # without a turn so far; no trials where that is all of the batch
        for number, outcome in found:
            position = places[number]
            outcomes[position] = outcome
            held.append(position)
            if outcome.tells_of_program:
                self._record_all(current, held, outcomes)
                held = []
        if len(outcomes) < len(current.candidates):  # a resumed run measures the others
            raise _Stopped
        if held and len(held) == len(places):
            raise self._no_turn(outcomes[held[-1]])
        self._record_all(current, held, outcomes)
        ordered = [outcomes[position] for position in range(len(current.candidates))]
        task.best_s.append(task.current_best_s)
        task.alone = task.alone or stays_behind(self._progress(None), current.task)
        task.search.observe(current.candidates, ordered)
        if all(other.best_s or other.exhausted for other in self._progress(None)):
            self._estimates_s.append(self.estimate.latency_s)
        self._report(self._line(current, ordered))

    def _no_turn(self, outcome: Outcome) -> PrunerError:
        why = f"{outcome.error}: {outcome.message}".rstrip(": ")
        return PrunerError(
            f"no program of the batch could be tried ({why}); after the repair, "
            f"resume={self._context.folder} continues"
        )

    def _record_all(
        self, current: _Round, positions: Sequence[int], outcomes: Mapping[int, Outcome]
    ) -> None:
        for position in positions:
            self._record(current, position, outcomes[position])

    def _record(self, current: _Round, position: int, outcome: Outcome) -> None:
        task, candidate = self.tasks[current.task], current.candidates[position]
        module, database, record = task.workload.module, self._context.database, None
        if outcome.error is None:
            target = self._context.platform.target
            record = record_json(module, candidate.schedule, outcome.costs_s, target)
        self._last_trial += 1
        trial = Trial(
            task=task.workload.name,
            trial=self._last_trial,
            batch=current.number,
            position=position,
            space=candidate.space,
            decisions=candidate.decisions.tolist(),
            costs_s=list(outcome.costs_s),
            error=outcome.error,
            message=outcome.message,
            build_s=outcome.build_s,
            run_s=outcome.run_s,
            elapsed_s=self._phases.elapsed_s,
            timestamp=time.time(),
            checked=outcome.checked,
            record=None if record is None else json.dumps(record),
        )
        self._journal.append(asdict(trial))
        if record is not None:
            database.commit_json(module, record)
        _count(task, trial)

    def _line(self, current: _Round, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        task = self.tasks[current.task]
        return {
            "task": task.workload.name,
            "trials": self.trials,
            "task_trials": task.trials,
            "best_latency_s": task.current_best_s,
            "estimate_s": self.estimate.latency_s,
            "measured_share": self.estimate.measured_share,
            "failures": sum(other.failures.total() for other in self.tasks),
            "failed": sum(outcome.error is not None for outcome in outcomes),
            "seconds": self._phases.elapsed_s,
            **{f"seconds/{name}": s for name, s in self._phases.seconds().items()},
        }

    def _save(self, rounds: Sequence[_Round]) -> None:
        """Write down what is known and which batches were chosen."""
        waiting = [
            {
                "number": r.number,
                "task": self.tasks[r.task].workload.name,
                "space": [c.space for c in r.candidates],
                "decisions": [c.decisions for c in r.candidates],
            }
            for r in rounds
            if self._prepared.savable
        ]
        shared = self._prepared.shared
        state = {
            "number": self._number,
            "waiting": waiting,
            "programs": self._programs,
            "tasks": {task.workload.name: _state_of(task) for task in self.tasks},
            "model": None if shared is None else shared.state(),
            "estimates_s": np.array(self._estimates_s),
            "pace_s": self._pace_s,
            "seconds": self._phases.seconds(),
        }
        save_state(self._snapshot, state)

    def _take_up(self) -> None:
        """What earlier starts left: the journal is the truth, the other files follow it.

        Raises:
            PrunerError: a run of an older version, or of other programs.
        """
        folder, rows = self._context.folder, self._rows
        if (folder / OLD_FILE).is_file() and not self._snapshot.is_file():
            raise DataError(
                f"resume={folder}: a run of an older version, whose {OLD_FILE} is no longer "
                f"read; a new run with warm_start=[{folder}] uses its measurements"
            )
        modules = {task.workload.name: task.workload.module for task in self.tasks}
        strange = sorted({row.task for row in rows} - modules.keys())
        if strange:
            raise DataError(f"resume={folder}: its journal has {strange[0]}, not a task of the run")
        added = self._context.database.catch_up(modules, rows, self._context.tell)
        if added:
            self._context.tell(f"{added} records of the journal were not in the database yet")
        known_s = [task.current_best_s for task in self.tasks]
        for row in rows:
            _count(self._task(row.task), row)
        if not self._snapshot.is_file() and not rows:
            return
        try:
            self._restore(load_state(self._snapshot))
        except DataError as error:
            self._context.tell(
                f"{error}; the search starts again with the results of {JOURNAL_FILE}"
            )
            self._rebuild(known_s)

    def _task(self, name: str) -> LiveTask:
        return next(task for task in self.tasks if task.workload.name == name)

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly. Raises `DataError` for a state that is not of this run."""
        try:
            self._check_state(state)
            self._restore_tasks(state["tasks"])
            if self._prepared.shared is not None:
                self._prepared.shared.load_state(state["model"])
            self._number, pace_s = int(state["number"]), state["pace_s"]
            self._pace_s = None if pace_s is None else float(pace_s)
            self._estimates_s = state["estimates_s"].tolist()
            self._restore_waiting(state["waiting"])
            self._add_seconds(state["seconds"])
        except PrunerError:
            raise
        except Exception as error:  # the values of another version, or of nobody
            told = f"{type(error).__name__}: {error}"
            raise DataError(f"{self._snapshot}: not a state of this run ({told:.120})") from error

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse other programs, and a state that is older than the journal."""
        known = state["programs"]
        other = [name for name in self._programs if known.get(name) != self._programs[name]]
        if other:
            raise self._other_program(other[0])
        if any(row.batch > state["number"] for row in self._rows):
            raise DataError(f"{self._snapshot}: older than the journal")

    def _other_program(self, name: str) -> PrunerError:
        return PrunerError(
            f"resume={self._context.folder}: {name} is not the program that this run was begun "
            "with; start a new run"
        )

    def _restore_tasks(self, state: Mapping[str, Any]) -> None:
        for task in self.tasks:
            mine = state[task.workload.name]
            if mine["search"] is not None:
                task.made = task.open_search()
                task.made.load_state(mine["search"])
            task.best_s = mine["best_s"].tolist()
            task.exhausted, task.alone = mine["exhausted"], mine["alone"]

    def _restore_waiting(self, waiting: Sequence[Mapping[str, Any]]) -> None:
        indices = {task.workload.name: index for index, task in enumerate(self.tasks)}
        for batch in waiting:
            index = indices[batch["task"]]
            restore = self.tasks[index].search.restore
            places = zip(batch["space"], batch["decisions"], strict=True)
            candidates = [restore(space, decisions) for space, decisions in places]
            self._waiting.append(_Round(number=batch["number"], task=index, candidates=candidates))

    def _rebuild(self, known_s: Sequence[float]) -> None:
        """Go on from the journal alone: the search draws other programs than it would have, but
        whatever was measured is known. `known_s` of every task are seconds of earlier runs.

        Raises:
            PrunerError: the database, which the journal agrees with, has records of other programs.
        """
        known = self._context.database.tvm_database
        for name in {row.task for row in self._rows if row.record is not None}:
            if not known.has_workload(self._task(name).workload.module):
                raise self._other_program(name)
        self._waiting, self._estimates_s, self._pace_s = [], [], None
        self._prepared.begin_anew()
        for task in self.tasks:
            task.made, task.best_s, task.exhausted, task.alone = None, [], False, False
        best_s = dict(zip((task.workload.name for task in self.tasks), known_s, strict=True))
        rows = sorted(self._rows, key=lambda row: (row.batch, row.position))
        for _, batch in itertools.groupby(rows, key=lambda row: row.batch):
            done = list(batch)
            task, name = self._task(done[0].task), done[0].task
            if self._prepared.savable:
                candidates = [_candidate(row) for row in done]
                task.search.observe(candidates, [_outcome(row) for row in done])
            best_s[name] = min([best_s[name], *(row.latency_s for row in done)])
            task.best_s.append(best_s[name])
        self._number = max((row.batch for row in rows), default=0)
        self._add_seconds(dict.fromkeys((*PHASES, IDLE), 0.0))

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Those of earlier starts, and between the last word of one and its end."""
        latest_s = max((row.elapsed_s for row in self._rows), default=0.0)
        idle_s = seconds[IDLE] + max(0.0, latest_s - sum(seconds.values()))
        self._phases.add({**seconds, IDLE: idle_s})


def _state_of(task: LiveTask) -> dict[str, Any]:
    return {
        "search": None if task.made is None else task.made.state(),
        "best_s": np.array(task.best_s),
        "exhausted": task.exhausted,
        "alone": task.alone,
    }


def _count(task: LiveTask, trial: Trial) -> None:
    task.trials += 1
    if trial.error is not None:
        task.failures[trial.error] += 1
    task.current_best_s = min(task.current_best_s, trial.latency_s)


def _outcome(row: Trial) -> Outcome:
    return Outcome(
        costs_s=tuple(row.costs_s),
        error=row.error,
        message=row.message,
        build_s=row.build_s,
        run_s=row.run_s,
        checked=row.checked,
    )


def _candidate(row: Trial) -> Candidate:
    """The program of a row; there is no schedule of it any more."""
    return Candidate(space=row.space, decisions=np.array(row.decisions, np.int64), schedule=None)
