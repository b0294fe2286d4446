"""Tuning sessions: policies, measurers and a budget of trials; one task, or many in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.errors import PrunerError
from pruner.search.offline.pool import Clock
from pruner.search.policy import Measurements, Policy


class OfflineMeasurer(Protocol):
    """Answers from what was recorded, by a simulated clock."""

    clock: Clock

    def measure(self, decisions: Decisions) -> Measurements:
        """Latencies of decision vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best latency so far after every trial [trials] or [trials, task], and the clock's seconds.

    Infinite for a task that was not measured yet.
    """

    best_s: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]


def run_session(
    policy: Policy, measurer: OfflineMeasurer, *, trials: int, batch: int = 10
) -> Curve:
    """Propose, measure, observe until `trials` programs are measured or nothing new is proposed.

    Raises:
        PrunerError: not one program was proposed.
    """
    curve = run_tasks([(policy, measurer)], trials=trials, batch=batch)
    return Curve(best_s=curve.best_s[:, 0], elapsed_s=curve.elapsed_s)


def run_tasks(
    tasks: Sequence[tuple[Policy, OfflineMeasurer]], *, trials: int, batch: int = 10
) -> Curve:
    """The same for several tasks, one batch each in turn; a task that has nothing new drops out.

    All measurers share one clock.

    Raises:
        PrunerError: not one program was proposed.
    """
    best = np.full(len(tasks), np.inf)
    rows: list[NDArray[np.float64]] = []
    elapsed: list[float] = []
    waiting = list(range(len(tasks)))
    while waiting and len(rows) < trials:
        number = waiting.pop(0)
        policy, measurer = tasks[number]
        measurer.clock.think()
        proposed = policy.propose(min(batch, trials - len(rows)))
        measurer.clock.thought()
        if not len(proposed):
            continue
        measured = measurer.measure(proposed)
        measurer.clock.think()
        policy.observe(measured)
        measurer.clock.thought()
        for latency_s in measured.latency_s:
            best[number] = min(best[number], latency_s)
            rows.append(best.copy())
        elapsed.extend([measurer.clock.total_s] * len(proposed))
        waiting.append(number)
    if not rows:
        raise PrunerError("no program was proposed; the space is empty or its limits forbid all")
    return Curve(best_s=np.array(rows), elapsed_s=np.array(elapsed))
