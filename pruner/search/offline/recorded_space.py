"""A recorded pool as search space and measurer, with a simulated clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.errors import PrunerError
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.search.space import RowKeys

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

    def _neighbours(self, count: int) -> NDArray[np.int64]:
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

    def rows(self, decisions: Decisions) -> NDArray[np.int64]:
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
        self,
        space: RecordedSpace,
        latency_s: NDArray[np.float64],
        cost_s: NDArray[np.float64],
        clock: Clock,
    ) -> None:
        self.space, self._latency_s, self._cost_s = space, latency_s, cost_s
        self.clock = clock

    def measure(self, decisions: Decisions) -> NDArray[np.float64]:
        """Seconds [N] of pool rows [N, d]; charges the clock their cost."""
        rows = self.space.rows(decisions)
        self.clock.measuring_s += float(self._cost_s[rows].sum())
        return self._latency_s[rows]
