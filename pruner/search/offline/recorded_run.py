"""Tune recorded pools: each is a space with its measurer, on a simulated clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from pruner.arrays import Decisions, Floats, Ints
from pruner.errors import PrunerError
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.search.decision_search import DecisionSearch, Search
from pruner.search.loop import Round, TuneBudget, TuningLoop, TuningTask
from pruner.search.policy import Policy
from pruner.search.space import Candidate, History, RowKeys

_NEIGHBOURS = 16


class RecordedSpace:
    """A finite space: the measured decision vectors of a task, with `spaces` of tokens.

    A mutation moves to one of a row's nearest rows (fewest decisions changed).
    """

    can_draft = True
    affordable: int | None = None

    def __init__(self, decisions: Decisions, spaces: Sequence[TokenSpace | None] = (None,)) -> None:
        """Raises `PrunerError` for an empty pool."""
        if not len(decisions):
            raise PrunerError("empty pool: no measured program; give a record file with results")
        self.decisions, self.spaces = decisions, list(spaces)
        self.num_slots = decisions.shape[1]
        self.widths: list[int] = [self.num_slots - 1] * (1 + int(decisions[:, 0].max()))
        self.keys = RowKeys(self.num_slots)
        keys = self.keys(decisions)
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]
        self._near = self._neighbours(min(_NEIGHBOURS, len(decisions) - 1))

    def _neighbours(self, count: int) -> Ints:
        if count < 1:
            return np.zeros((len(self.decisions), 1), np.int64)
        near = np.empty((len(self.decisions), count), np.int64)
        # once a pool, not once a candidate; all pairs at once would take N^2 d bytes
        for row, decisions in enumerate(self.decisions):
            distance = (self.decisions != decisions).sum(axis=1)
            distance[row] = self.num_slots + 1
            near[row] = np.argpartition(distance, count - 1)[:count]
        return near

    def __len__(self) -> int:
        return len(self.decisions)

    def rows(self, decisions: Decisions) -> Ints:
        """Pool rows [N] of vectors [N, d]; raise `PrunerError` for a vector outside."""
        keys = self.keys(decisions)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        if not np.array_equal(self._sorted[at], keys):
            raise PrunerError("a program outside the recorded pool has no latency to look up")
        return self._order[at]

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Independent uniform rows [num, d]."""
        return self.decisions[rng.integers(0, len(self.decisions), num)]

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """A near neighbour of every parent [num, d]."""
        near = self._near[self.rows(parents)]
        pick = rng.integers(0, near.shape[1], len(parents))
        return self.decisions[near[np.arange(len(parents)), pick]]

    def token_spaces(self) -> list[TokenSpace | None]:
        """The tokens of each design space."""
        return self.spaces

    def instantiate(self, decisions: Decisions) -> Sequence[Any]:
        """The rows themselves, as schedules; none is refused."""
        return list(decisions)

    def clear_cache(self) -> None:
        """Do nothing: no proposal fills a cache."""


@dataclass(slots=True)
class Clock:
    """Simulated seconds: recorded cost of measuring plus CPU time of the search."""

    measuring_s: float = 0.0
    thinking_s: float = 0.0
    _since: float = field(default_factory=time.process_time)

    @property
    def total_s(self) -> float:
        """Measuring and thinking together."""
        return self.measuring_s + self.thinking_s

    def think(self) -> None:
        """Start a stretch of thinking."""
        self._since = time.process_time()

    def thought(self) -> None:
        """End the stretch of thinking that `think` started."""
        self.thinking_s += time.process_time() - self._since


class RecordedMeasurer:
    """Looks up latencies in the records and charges their recorded cost."""

    def __init__(
        self, space: RecordedSpace, latency_s: Floats, cost_s: Floats, clock: Clock
    ) -> None:
        self.space, self._latency_s, self._cost_s = space, latency_s, cost_s
        self.clock = clock

    def measure(self, decisions: Decisions) -> Floats:
        """Seconds [N] of pool rows [N, d]; charges the clock their cost."""
        rows = self.space.rows(decisions)
        self.clock.measuring_s += float(self._cost_s[rows].sum())
        return self._latency_s[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best latency [trials] or [trials, task] and the clock's seconds [trials]."""

    best_s: Floats
    elapsed_s: Floats


def run_session(
    policy: Policy, measurer: RecordedMeasurer, *, trials: int, batch: int = 10
) -> Curve:
    """Tune one pool until `trials` are spent or no program is new.

    Raises as `run_tasks`.
    """
    search = DecisionSearch(measurer.space, policy, History(measurer.space))
    curve = run_tasks([(search, measurer)], trials=trials, batch=batch)
    return Curve(best_s=curve.best_s[:, 0], elapsed_s=curve.elapsed_s)


def run_tasks(
    tasks: Sequence[tuple[Search, RecordedMeasurer]], *, trials: int, batch: int = 10
) -> Curve:
    """Tune pools on one clock in turns; raise `PrunerError` where nothing is proposed."""
    loop = _RecordedLoop(tasks, TuneBudget(trials=trials, batch=batch))
    loop.run()
    return Curve(best_s=np.array(loop.best_s), elapsed_s=np.array(loop.elapsed_s))


class _Records:
    """The measurer of the loop; a task's own measurer is its `arguments`."""

    exclusive: bool | None = None

    def begin(
        self, candidates: Sequence[Candidate], arguments: Any, known_s: Callable[[], float]
    ) -> Floats:
        rows = np.array([[one.space, *one.decisions] for one in candidates], np.int64)
        return arguments.measure(rows)

    def cancel(self, batch: Any) -> None:
        """Nothing is built."""

    def results(
        self,
        batch: Any,
        accept: Callable[[int, Any], bool],
        check: Any,
        stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, Any]]:
        for place, latency_s in enumerate(batch):
            seconds = float(latency_s)
            yield place, SimpleNamespace(latency_s=seconds, error=None, concerns_program=True)


class _RecordedLoop(TuningLoop):
    """Round-robin rounds of equal size; proposing and learning costs thinking time."""

    def __init__(
        self, tasks: Sequence[tuple[Search, RecordedMeasurer]], budget: TuneBudget
    ) -> None:
        made = [
            TuningTask(name=str(number), make_search=lambda s=search: s, arguments=measurer)  # type: ignore[misc]
            for number, (search, measurer) in enumerate(tasks)
        ]
        # The release's task scheduler (docs/paper.md section 6).
        super().__init__(made, _Records(), budget=budget, order="round_robin")
        self._clock = tasks[0][1].clock
        self.best_s: list[Floats] = []
        self.elapsed_s: list[float] = []

    def run(self) -> None:
        self._clock.think()
        super().run()

    def _size(self, task: TuningTask, left: int, *, first: bool) -> int:
        # The paper measures full rounds from the start.
        return min(left, self._budget.batch)

    def _begin(self, candidates: list[Candidate], new: Round) -> Any:
        self._clock.thought()
        # A lookup stands for a measurement: its own CPU time is not charged.
        found = super()._begin(candidates, new)
        self._clock.think()
        return found

    def _record(self, current: Round, position: int, outcome: Any) -> None:
        super()._record(current, position, outcome)
        self.best_s.append(np.array([task.current_best_s for task in self.tasks]))

    def _report(self, current: Round, outcomes: Sequence[Any]) -> None:
        self._clock.thought()
        self.elapsed_s.extend([self._clock.total_s] * len(outcomes))
        self._clock.think()
