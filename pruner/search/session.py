"""One tuning session of one task: a policy, a measurer and a budget of trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.search.policy import Policy
from pruner.search.pool import Clock, Measurements
from pruner.search.space import Decisions


class Measurer(Protocol):
    """Runs programs, or replays what was recorded."""

    clock: Clock

    def measure(self, decisions: Decisions) -> Measurements:
        """Latencies of decision vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Best latency so far after every trial, and the clock's seconds then; both [trials]."""

    best_s: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]


def run_session(policy: Policy, measurer: Measurer, *, trials: int, batch: int = 10) -> Curve:
    """Propose, measure, observe until `trials` programs are measured or nothing new is proposed.

    Raises:
        PrunerError: not one program was proposed.
    """
    latencies: list[float] = []
    elapsed: list[float] = []
    while len(latencies) < trials:
        measurer.clock.think()
        proposed = policy.propose(min(batch, trials - len(latencies)))
        measurer.clock.thought()
        if not len(proposed):
            break
        measured = measurer.measure(proposed)
        measurer.clock.think()
        policy.observe(measured)
        measurer.clock.thought()
        latencies.extend(measured.latency_s.tolist())
        elapsed.extend([measurer.clock.total_s] * len(proposed))
    if not latencies:
        raise PrunerError("no program was proposed; the space is empty or its limits forbid all")
    return Curve(best_s=np.minimum.accumulate(latencies), elapsed_s=np.array(elapsed))
