"""Interface of a space of decision vectors, and the measured programs of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pruner.arrays import Decisions, Floats, Ints, Keys, Mask

_SEED = 20250330  # equal keys in every process: a resumed run recognises its proposals


class SearchSpace(Protocol):
    """A space to sample, to mutate, and to compare vectors in."""

    num_slots: int

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Independent draws int64 [num, d]."""

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Change one decision of every parent [num, d]."""

    @property
    def keys(self) -> Callable[[Decisions], Keys]:
        """A 64-bit key for every row; equal rows have equal keys."""


class RowKeys:
    """A 64-bit key a row; equal rows have equal keys."""

    def __init__(self, num_slots: int) -> None:
        random = np.random.default_rng(_SEED)
        # Odd weights: multiplication modulo 2^64 is a bijection, so no value of a slot is lost.
        self._weights = random.integers(1, 1 << 62, num_slots, dtype=np.int64) | 1

    def __call__(self, decisions: Decisions) -> Keys:
        """Keys int64 [N] of vectors int64 [N, d]."""
        with np.errstate(over="ignore"):
            # Wrap-around modulo 2^64 is intended.
            return (decisions * self._weights).sum(axis=1)


def divisors(extent: int) -> Ints:
    """All divisors in ascending order."""
    small = np.arange(1, int(extent**0.5) + 1)
    small = small[extent % small == 0]
    return np.unique(np.concatenate([small, extent // small]))


def unique_rows(keys: Keys) -> Ints:
    """Positions [U] of the first row of every key, ascending."""
    return np.sort(np.unique(keys, return_index=True)[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A program chosen for measurement: design space, decisions [d] and schedule."""

    space: int
    decisions: Ints
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

    def add(self, decisions: Decisions, latency_s: Floats, tried: Mask | None = None) -> None:
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
