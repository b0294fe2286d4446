"""Interface of a space of decision vectors for explorers and policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pruner.arrays import Decisions, Ints, Keys

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
