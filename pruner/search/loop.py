"""The tuning loop: propose, measure, observe, choose the next task.

A live run (:mod:`pruner.tune.run.loop`) and a recorded run
(:mod:`pruner.search.offline.recorded_run`) override the methods that are marked as hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pruner.errors import PrunerError
from pruner.progress import Log, silent
from pruner.search.decision_search import Search
from pruner.search.space import Candidate
from pruner.search.task_order import (
    Estimate,
    Order,
    TaskProgress,
    has_settled,
    next_task,
    round_size,
    stays_behind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneBudget:
    """Limits of a run: `trials` of all tasks, `seconds`, or no more improvement.

    That is `patience` rounds that changed the latency of all tasks by less than `tolerance`.
    """

    trials: int = 64
    seconds: float | None = None
    batch: int = 16  # candidates a round
    patience: int | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if min(self.trials, self.batch) < 1 or (self.seconds is not None and self.seconds <= 0):
            raise PrunerError(
                "budget: trials and batch must be at least 1, seconds above 0 or null"
            )
        if (self.patience is not None and self.patience < 1) or not 0 <= self.tolerance < 1:
            raise PrunerError("budget: patience must be at least 1 or null, tolerance in [0, 1)")


class Measurer(Protocol):
    """Measures candidates; ``exclusive``: nothing may be built while a program is timed."""

    exclusive: bool | None

    def begin(
        self, candidates: Sequence[Candidate], arguments: Any, known_s: Callable[[], float]
    ) -> Any:
        """Begin a batch; ``known_s()`` is the task's best latency when a program is timed."""

    def cancel(self, batch: Any) -> None:
        """Drop the builds of a batch that have not begun."""

    def results(
        self,
        batch: Any,
        accept: Callable[[int, Any], bool],
        check: Any,
        stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, Any]]:
        """Yield (position, outcome) in order until `stopped`; compare what `accept` accepts."""


@dataclass(slots=True, kw_only=True, eq=False)
class TuningTask:
    """A task of a loop with its search and its results.

    ``find_check`` returns the reference results (None: not checked); ``best_s``: after every batch;
    ``exhausted``: no programs left; ``alone``: no other task is similar (`stays_behind`).
    """

    name: str
    make_search: Callable[[], Search]
    arguments: Any = ()
    find_check: Callable[..., Any] = lambda: None
    weight: float = 1.0
    flops: float = 1.0
    operator: str | None = None
    made: Search | None = None  # the search, once the task has begun
    best_s: list[float] = field(default_factory=list)
    current_best_s: float = float("inf")
    trials: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    exhausted: bool = False
    alone: bool = False

    @property
    def search(self) -> Search:
        """The search; the first access begins the task (a second or more)."""
        if self.made is None:
            self.made = self.make_search()
        return self.made

    @property
    def progress(self) -> TaskProgress:
        """Progress for the task order; an untried task counts its earlier runs."""
        known_s = [self.current_best_s] if self.current_best_s != float("inf") else []
        return TaskProgress(
            weight=self.weight,
            flops=self.flops,
            best_s=self.best_s or known_s,
            operator=self.operator,
            alone=self.alone,
            exhausted=self.exhausted,
        )

    def improves(self, outcome: Any) -> bool:
        """Whether a result would be kept: its program is compared with the reference."""
        return bool(outcome.latency_s < self.current_best_s)

    def count(self, latency_s: float, error: str | None) -> None:
        """Count a trial."""
        self.trials += 1
        if error is not None:
            self.failures[error] += 1
        self.current_best_s = min(self.current_best_s, latency_s)


class RunStopped(Exception):
    """The run was interrupted, or its time is over."""


@dataclass(slots=True, kw_only=True, eq=False)
class Round:
    """A batch of a task; ``known_s``: its best latency in batches finished before."""

    number: int
    task: int
    candidates: list[Candidate]
    known_s: float = float("inf")


class TuningLoop:
    """Tune all tasks of a run under one budget."""

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        measurer: Measurer,
        *,
        budget: TuneBudget,
        order: Order,
        log: Log = silent,
        lag: int = 0,
    ) -> None:
        """``lag``: batches proposed before the last results arrive."""
        self.tasks, self._measurer, self._lag = list(tasks), measurer, lag
        self._budget, self._order, self._log = budget, order, log
        # outcomes of earlier starts by (round, position)
        self._done: dict[tuple[int, int], Any] = {}
        self._number = 0
        self._waiting: list[Round] = []
        # of rounds that are not measured yet: the batch, and its programs
        self._begun: dict[int, tuple[Any, int]] = {}
        self._estimates_s: list[float] = []  # of all tasks, since each was tried once
        self._pace_s: float | None = None  # seconds a trial of the latest rounds
        self._since_s = 0.0  # when the latest round ended

    def run(self) -> None:
        """Measure rounds until the budget is spent or the run is interrupted.

        Raises `PrunerError` where no program of a batch could be tried, or no task has a program.
        """
        try:
            while self._waiting or self._propose():
                self._measure(self._waiting.pop(0))
        except RunStopped:
            pass  # the open round is lost as by a kill: the last snapshot does not contain it
        finally:
            for batch, _ in self._begun.values():  # else the final kernels wait behind them
                self._measurer.cancel(batch)
        if not self.trials and not self._stopped():
            raise PrunerError("no task has a program to try: spaces are empty or refuse all")

    def _stopped(self) -> bool:
        """Hook: whether the run was interrupted or its time is over."""
        return False

    def _elapsed_s(self) -> float:
        """Hook: seconds of the run so far, including earlier starts."""
        return 0.0

    def _begin(self, candidates: list[Candidate], new: Round) -> Any:
        """Hook: start the measurement of the candidates of a round without result."""
        task = self.tasks[new.task]
        return self._measurer.begin(candidates, task.arguments, self._known_s(new))

    def _known_s(self, new: Round) -> Callable[[], float]:
        """The best latency that decides how long programs of a round are timed.

        A resumed run decides alike: where programs run one by one, every earlier result is in the
        journal; elsewhere only what was known when the round was chosen counts.
        """
        task = self.tasks[new.task]
        if self._measurer.exclusive:
            return lambda: task.current_best_s
        return lambda: new.known_s

    def _size(self, task: TuningTask, left: int, *, first: bool) -> int:
        """Hook: number of candidates of a round, at most `left`."""
        size = round_size(self._budget.batch, self._budget.trials, len(self.tasks), first=first)
        return min(left, size)

    def _chose(self, rounds: Sequence[Round]) -> None:
        """Hook: rounds were chosen that have no results yet."""

    def _record(self, current: Round, position: int, outcome: Any) -> None:
        """Hook: count the outcome at a position of the round."""
        self.tasks[current.task].count(outcome.latency_s, outcome.error)

    def _report(self, current: Round, outcomes: Sequence[Any]) -> None:
        """Hook: a round is over; outcomes in candidate order."""

    def _no_turn(self, outcome: Any) -> PrunerError:
        """Hook: the error for a round without any tried program."""
        return PrunerError(f"no program of the batch could be tried ({outcome.error})")

    @property
    def trials(self) -> int:
        """Candidates measured so far, failures included."""
        return sum(task.trials for task in self.tasks)

    @property
    def estimate(self) -> Estimate:
        """Estimated latency of all tasks together."""
        found = (task.progress for task in self.tasks)
        return Estimate.of((one.weight, one.flops, one.latest_s) for one in found)

    @property
    def _settled(self) -> bool:
        return has_settled(self._estimates_s, self._budget.patience, self._budget.tolerance)

    def _measure(self, current: Round) -> None:
        """Measure a batch; with a lag, propose the next batches meanwhile."""
        # The order matters: workers build this batch while the search proposes the next.
        batch, missing = self._built(current)
        while len(self._waiting) < self._lag:
            if not self._propose([current, *self._waiting]):
                # A resumed run must not continue from before the results that came since.
                self._chose([current, *self._waiting])
                break
        self._finish(current, batch)
        del self._begun[current.number]  # an exception before leaves it to `run`, which cancels it
        now_s = self._elapsed_s()
        spent_s, self._since_s = now_s - self._since_s, now_s
        if missing:
            # Exponential average, so that the pace follows the latest rounds.
            pace_s = spent_s / missing
            self._pace_s = pace_s if self._pace_s is None else (self._pace_s + pace_s) / 2

    def _built(self, current: Round) -> tuple[Any, int]:
        """Begin the builds of a round; on a separate device, of all rounds."""
        for new in [current] if self._measurer.exclusive else [current, *self._waiting]:
            self._build(new)
        return self._begun[current.number]

    def _build(self, new: Round) -> None:
        if new.number in self._begun:
            return
        missing = [
            candidate
            for position, candidate in enumerate(new.candidates)
            if (new.number, position) not in self._done
        ]
        self._begun[new.number] = self._begin(missing, new), len(missing)

    def _propose(self, unfinished: Sequence[Round] = ()) -> bool:
        """Choose the next batch beside the `unfinished`; save it; False without candidates."""
        # The open batches have no trials yet, but their candidates are spent all the same.
        building = sum(len(one.candidates) for one in unfinished)
        left = min(self._budget.trials - self.trials, self._affordable()) - building
        if self._settled:
            return False
        while left > 0 and not self._stopped():
            progress = self._progress(unfinished)
            index = next_task(self._order, progress)
            if index is None:
                return False
            task = self.tasks[index]
            size = self._size(task, left, first=not progress[index].best_s)
            candidates = self._chosen(task, size)
            if candidates:
                self._number += 1
                new = Round(
                    number=self._number,
                    task=index,
                    candidates=candidates[:left],
                    known_s=task.best_s[-1] if task.best_s else float("inf"),
                )
                self._waiting.append(new)
                self._chose([*unfinished, new])
                if unfinished and not self._measurer.exclusive:
                    self._build(new)
                return True
            # No candidates: this task never returns, the next best takes the round.
            task.exhausted = True
        return False

    def _affordable(self) -> int:
        """Trials that fit into the remaining seconds at the latest pace."""
        if self._budget.seconds is None or self._pace_s is None:
            return self._budget.trials
        return int((self._budget.seconds - self._elapsed_s()) / self._pace_s)

    def _chosen(self, task: TuningTask, num: int) -> list[Candidate]:
        """Candidates of a task's search; its error does not end other tasks."""
        try:
            return task.search.propose(num)
        except PrunerError as error:
            # With one task nothing is left to tune; a task with trials did not fail to begin.
            if len(self.tasks) == 1 or task.trials:
                raise
            self._log(f"{task.name}: left out, {error}")
            return []

    def _progress(self, unfinished: Sequence[Round] = ()) -> list[TaskProgress]:
        """Progress of all tasks; an open batch counts as without improvement."""
        found = [task.progress for task in self.tasks]
        for one in unfinished:
            task, before = self.tasks[one.task], found[one.task]
            # Else the gradient would choose the task again before results can lower its slope.
            best_s = [*before.best_s, task.current_best_s]
            found[one.task] = replace(before, best_s=best_s, awaited=True)
        return found

    def _finish(self, current: Round, batch: Any) -> None:
        """Measure a batch; every result is recorded before the next is fetched."""
        task = self.tasks[current.task]
        places = [
            position
            for position in range(len(current.candidates))
            if (current.number, position) not in self._done
        ]
        outcomes = {
            position: self._done[current.number, position]
            for position in range(len(current.candidates))
            if position not in places
        }
        found = self._measurer.results(
            batch,
            lambda _, outcome: task.improves(outcome),
            task.find_check(),
            self._stopped,
        )
        # untried so far; they count as trials only if another of the batch was tried
        held: list[int] = []
        for number, outcome in found:
            position = places[number]
            outcomes[position] = outcome
            held.append(position)
            # A tried program proves that workers live: the untried ones before were single losses.
            if outcome.concerns_program:
                self._record_all(current, held, outcomes)
                held = []
        if len(outcomes) < len(current.candidates):  # a resumed run measures the others
            raise RunStopped
        # No try at all means a broken machine: failures would mislead the failure model.
        if held and len(held) == len(places):
            raise self._no_turn(outcomes[held[-1]])
        self._record_all(current, held, outcomes)
        ordered = [outcomes[position] for position in range(len(current.candidates))]
        task.best_s.append(task.current_best_s)
        task.alone = task.alone or stays_behind(self._progress(), current.task)
        task.search.observe(current.candidates, ordered)
        # Before, the estimate moves with each new task, not with better programs.
        if all(other.best_s or other.exhausted for other in self._progress()):
            self._estimates_s.append(self.estimate.latency_s)
        self._report(current, ordered)

    def _record_all(
        self, current: Round, positions: Sequence[int], outcomes: Mapping[int, Any]
    ) -> None:
        for position in positions:
            self._record(current, position, outcomes[position])
