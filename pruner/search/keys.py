"""Keys of decision vectors, by which programs are told apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SEED = 20250330  # the same keys in every process: a resumed run knows what it has proposed


class RowKeys:
    """A 64-bit key a row; equal rows have equal keys."""

    def __init__(self, num_slots: int) -> None:
        random = np.random.default_rng(_SEED)
        self._weights = random.integers(1, 1 << 62, num_slots, dtype=np.int64) | 1

    def __call__(self, decisions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keys int64 [N] of vectors int64 [N, d]."""
        with np.errstate(over="ignore"):
            return (decisions * self._weights).sum(axis=1)
