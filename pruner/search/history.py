"""The measured programs of a task, stored once for all readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Keys
from pruner.search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A program chosen for measurement: design space, decisions [d] and schedule."""

    space: int
    decisions: NDArray[np.int64]
    schedule: Any


class History:
    """The measured programs of a task in the order of results; append-only.

    ``decisions`` int64 [N, d]; ``latency_s`` [N], infinite where a program failed; ``tried`` [N],
    False where no device or worker ran the program, so that the result says nothing about it.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.decisions: Decisions = np.zeros((0, space.num_slots), np.int64)
        self.latency_s = np.zeros(0)
        self.tried = np.zeros(0, bool)

    def __len__(self) -> int:
        return len(self.latency_s)

    def add(
        self,
        decisions: Decisions,
        latency_s: NDArray[np.float64],
        tried: NDArray[np.bool_] | None = None,
    ) -> None:
        """Append results [n]; without `tried` every program was tried."""
        tried = np.ones(len(latency_s), bool) if tried is None else tried
        self.decisions = np.concatenate([self.decisions, decisions])
        self.latency_s = np.concatenate([self.latency_s, latency_s])
        self.tried = np.concatenate([self.tried, tried])

    @property
    def keys(self) -> Keys:
        """The 64-bit keys [N] of its programs."""
        return self.space.keys(self.decisions)

    def best(self, num: int) -> Decisions:
        """At most `num` programs, the fastest first."""
        # Stable: equal latencies (all failures) keep their order, so a resumed run repeats.
        return self.decisions[np.argsort(self.latency_s, kind="stable")[:num]]
