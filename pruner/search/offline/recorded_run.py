"""The tuning loop on recorded pools, with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.search.decision_search import DecisionSearch, Search
from pruner.search.loop import Round, TuneBudget, TuningLoop, TuningTask
from pruner.search.offline.recorded_space import RecordedMeasurer
from pruner.search.policy import Policy
from pruner.search.space import Candidate, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best latency [trials] or [trials, task] and the clock's seconds [trials]."""

    best_s: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The recorded outcome of a candidate."""

    latency_s: float
    error: str | None = None
    concerns_program: bool = True


class _Records:
    """The measurer of the loop; a task's own measurer is its `arguments`."""

    exclusive: bool | None = None

    def begin(
        self, candidates: Sequence[Candidate], arguments: Any, known_s: Callable[[], float]
    ) -> NDArray[np.float64]:
        rows = np.array([[one.space, *one.decisions] for one in candidates], np.int64)
        found: NDArray[np.float64] = arguments.measure(rows)
        return found

    def cancel(self, batch: Any) -> None:
        """Nothing is built."""

    def results(
        self,
        batch: Any,
        accept: Callable[[int, Any], bool],
        check: Any,
        stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, _Recorded]]:
        return ((place, _Recorded(float(seconds))) for place, seconds in enumerate(batch))


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
        self.best_s: list[NDArray[np.float64]] = []
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
