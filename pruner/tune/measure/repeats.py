"""End the repeats of a measurement early; run them with real-time priority.

Facts from AdaTune's release (Li et al., NeurIPS'20, measure_methods.py): a limit of 0.1 on the
coefficient of variation of the speeds, more than two repeats, from five on without the fastest and
the slowest.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRepeats:
    """A rule that ends the repeats of a measurement.

    ``cv_limit`` (None: off), after each repeat beyond the second: stop if the coefficient of
    variation of the speeds (``1 / seconds``; of five and more the fastest and slowest left out) is
    below it. ``above_s``, after each repeat: stop if every repeat so far took longer, in seconds.
    A disturbance makes a repeat longer and hardly ever shorter, so the fastest repeat decides, and
    a program whose first repeat is within ``above_s`` gets all its repeats.
    """

    cv_limit: float | None = 0.1
    above_s: float = float("inf")

    def enough(self, costs_s: Sequence[float] | NDArray[np.float64]) -> bool:
        """Check whether the repeats so far, seconds [R], suffice."""
        if len(costs_s) and min(costs_s) > self.above_s:
            return True
        if self.cv_limit is None or len(costs_s) < 3:
            return False
        speed = np.sort(1.0 / np.asarray(costs_s))
        speed = speed[1:-1] if len(speed) > 4 else speed
        return bool(speed.std() < self.cv_limit * speed.mean())

    def measured(self, measure: Callable[[], float], most: int) -> list[float]:
        """Call `measure`, which returns seconds, until the repeats suffice or `most` calls."""
        costs_s: list[float] = []
        while len(costs_s) < most and not self.enough(costs_s):
            costs_s.append(measure())
        return costs_s


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run this process's threads before ordinary processes, where permitted."""
    _schedule(os.SCHED_FIFO, priority=1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, priority=0)


def _schedule(policy: int, priority: int) -> None:
    # TVM's thread pool exists already, and Linux sets the policy of single threads only
    for thread in Path("/proc/self/task").iterdir():
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
