"""Analyse the stores in one pass, for all feature groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pruner.arrays import Floats, IntLike
from pruner.features.statement.accesses import Access, Buffers, store_accesses
from pruner.features.statement.array_helpers import column
from pruner.features.statement.memory import (
    AccessFeatures,
    Footprint,
    LoopFrame,
    access_features,
    footprint,
    make_frame,
)
from pruner.features.statement.ops import FLOAT, INT, OpCounter
from pruner.features.statement.touches import NodeKeys, Seen, TouchTable, number_loops
from pruner.program.index.affine import any_nonzero
from pruner.program.nests import BufferStore, Loop, LoopNests


@dataclass(slots=True, eq=False)
class StoreAnalysis:
    """One store, measured.

    ``accesses`` in order of first touch (the written buffer first); ``counts`` the 16 operation
    counts of one iteration; ``touched_bytes`` [L, N] per loop; ``is_gpu``: a GPU index occurred at
    or before this store.
    """

    store: BufferStore
    frame: LoopFrame
    accesses: list[AccessFeatures]
    counts: list[IntLike]
    touched_bytes: Floats
    is_gpu: bool

    @property
    def float_ops(self) -> Floats:
        """Floating-point operations of one iteration [N]."""
        return column(sum(self.counts[FLOAT:INT]), self.frame.num)


@dataclass(frozen=True, slots=True, eq=False)
class Footprints:
    """Touches of a store in its own loops, without the stores before."""

    store: BufferStore
    frame: LoopFrame
    accesses: list[Access]
    feet: list[Footprint]

    @staticmethod
    def of(store: BufferStore, buffers: Buffers, num: int) -> Footprints:
        """Measure the store for ``num`` programs."""
        frame = make_frame(store.loops, num)
        accesses = store_accesses(buffers, store)
        return Footprints(store, frame, accesses, [footprint(one, frame) for one in accesses])

    def analysed(self, seen: Seen, *, is_gpu: bool) -> StoreAnalysis:
        """Finish the analysis, given the touches ``seen`` by its loops.

        ``seen`` includes the stores before and the store itself.
        """
        touched = np.zeros_like(self.frame.extents)
        for access, foot in zip(self.accesses, self.feet, strict=True):
            # Denominator of the intensity curve: all bytes one run of each loop touches.
            touched += foot.elements * access.bytes_per_element
        rows = access_features(self.accesses, self.feet, self.frame, seen)
        counts = OpCounter(self.store).counts
        return StoreAnalysis(self.store, self.frame, rows, counts, touched, is_gpu)


class Recorder:
    """Records touches of one program's stores after another, in program order."""

    def __init__(self, nests: LoopNests, node_keys: NodeKeys) -> None:
        self._numbers = number_loops(nests, node_keys)
        self._table = TouchTable(len(self._numbers), nests.num_programs)
        self._entered: set[int] = set()

    def record(
        self, store: BufferStore, loops: Sequence[Loop], touched: Sequence[tuple[Access, Floats]]
    ) -> Seen:
        """Append a store's accesses, and return the touches of its loops.

        Each access comes with its elements in ``loops`` [L, N]: the loops around the store that a
        program has.
        """
        # On first entry the row is emptied where the allocator made a fresh node (see
        # `number_loops`).
        for loop in store.loops:
            if id(loop) not in self._entered and any_nonzero(self._numbers[loop].forgets):
                self._table.forget(self._numbers[loop].row, self._numbers[loop].forgets)
            self._entered.add(id(loop))
        rows = [self._numbers[loop].row for loop in loops]
        for access, elements in touched:
            self._table.record(rows, access, elements)
        return self._table.seen(rows, [access for access, _ in touched])


def analyse_stores(nests: LoopNests, node_keys: NodeKeys = "recycled") -> list[StoreAnalysis]:
    """Measure the stores in program order.

    ``node_keys``: identity of loops in the table of touches, see :func:`number_loops`.
    """
    recorder = Recorder(nests, node_keys)
    is_gpu = False
    out = []
    for store in nests.stores:
        found = Footprints.of(store, nests.buffers, nests.num_programs)
        elements = [foot.elements for foot in found.feet]
        touched = list(zip(found.accesses, elements, strict=True))
        seen = recorder.record(store, found.frame.loops, touched)
        # feature.cc sets its flag at the first GPU index and never resets it: stores before keep 0.
        is_gpu = is_gpu or any(loop.is_bound for loop in store.loops)
        out.append(found.analysed(seen, is_gpu=is_gpu))
    return out
