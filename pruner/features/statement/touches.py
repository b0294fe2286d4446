"""Per-loop memory of what was touched so far (``for_touch_regions_`` of feature.cc).

The original walks the stores in program order and appends, for every loop around a store and every
buffer the store touches, how much of the buffer one run of the loop touches. Reuse looks at what
earlier stores left there, so the order of stores matters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.statement.accesses import READ, Access


class _BufferTouches:
    """Entries of one buffer at every loop."""

    def __init__(self, num_loops: int, num: int) -> None:
        self.count = np.zeros(num_loops, np.int64)
        self.first = np.zeros((num_loops, num))
        self.least = np.full((num_loops, num), np.inf)


class TouchTable:
    """Running totals by loop: [num_loops, N]."""

    def __init__(self, num_loops: int, num: int) -> None:
        self.all_bytes = np.zeros((num_loops, num))
        self.kept_bytes = np.zeros((num_loops, num))  # as all_bytes, but never forgotten
        self.read_bytes = np.zeros((num_loops, num))
        self.entry_bytes = np.zeros((num_loops, num))
        self._buffers: dict[int, _BufferTouches] = {}
        self._shape = (num_loops, num)

    def forget(self, row: int, where: NDArray[np.bool_] | np.bool_) -> None:
        """Drop the totals of loop ``row`` for the programs ``where``."""
        for totals in (self.all_bytes, self.read_bytes, self.entry_bytes):
            totals[row] = np.where(where, 0.0, totals[row])

    def record(self, rows: NDArray[np.int64], access: Access, elements: Floats) -> None:
        """Append one access: ``elements`` [L, N] touched elements per loop in ``rows``."""
        size = access.bytes_per_element
        self.all_bytes[rows] += elements * size
        self.kept_bytes[rows] += elements * size
        self.entry_bytes[rows] += size
        if access.kind == READ:
            self.read_bytes[rows] += elements * size
        table = self._buffers.setdefault(access.stage.key, _BufferTouches(*self._shape))
        fresh = rows[table.count[rows] == 0]
        table.first[fresh] = elements[table.count[rows] == 0]
        table.least[rows] = np.minimum(table.least[rows], elements)
        table.count[rows] += 1

    def of(self, access: Access) -> _BufferTouches:
        """Entries of the access's buffer."""
        return self._buffers[access.stage.key]
