"""One pass over the stores: everything that the feature groups share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pruner.arrays import Floats
from pruner.features.statement.accesses import store_accesses
from pruner.features.statement.memory import (
    AccessFeatures,
    LoopFrame,
    access_features,
    footprint,
    make_frame,
)
from pruner.features.statement.ops import FLOAT, INT, OpCounter
from pruner.features.statement.tensors import column
from pruner.features.statement.touches import NodeKeys, TouchTable, number_loops
from pruner.program.nests import BufferStore, LoopNests


@dataclass(slots=True, eq=False)
class StoreAnalysis:
    """One store, measured.

    ``accesses`` in order of first touch (the written buffer first); ``counts`` the 16 operation
    counts of one iteration, each [N]; ``touched_bytes`` [L, N] per loop; ``is_gpu``: a GPU index
    was met at or before this store.
    """

    store: BufferStore
    frame: LoopFrame
    accesses: list[AccessFeatures]
    counts: list[Floats]
    touched_bytes: Floats
    is_gpu: bool

    @property
    def float_ops(self) -> Floats:
        """All floating-point operations of one iteration [N]."""
        return np.sum(self.counts[FLOAT:INT], axis=0)


def analyse_stores(nests: LoopNests, node_keys: NodeKeys = "recycled") -> list[StoreAnalysis]:
    """Measure the stores in program order.

    ``node_keys``: what tells loops apart in the table of touches, see :func:`number_loops`.
    """
    num = nests.num_programs
    numbers = number_loops(nests, node_keys)
    table = TouchTable(len(numbers), num)
    is_gpu = False
    entered: set[int] = set()
    out = []
    for store in nests.stores:
        frame = make_frame(store.loops, numbers, num)
        for loop in store.loops:
            if id(loop) not in entered and np.any(numbers[loop].forgets):
                table.forget(numbers[loop].row, numbers[loop].forgets)
            entered.add(id(loop))
        accesses = store_accesses(nests, store)
        feet = [footprint(access, frame) for access in accesses]
        touched = np.zeros_like(frame.extents)
        for access, foot in zip(accesses, feet, strict=True):
            table.record(frame.rows, access, foot.elements)
            touched += foot.elements * access.bytes_per_element
        rows = access_features(accesses, feet, frame, table)
        is_gpu = is_gpu or any(loop.is_bound for loop in store.loops)
        counts = [column(c, num) for c in OpCounter(store).counts]
        out.append(StoreAnalysis(store, frame, rows, counts, touched, is_gpu))
    return out
