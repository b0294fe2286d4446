"""Analyse the stores of loop nests in one pass, for all feature groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, IntLike
from pruner.features.batched import StoreMember, grouped, joined_store, store_structure
from pruner.features.statement.accesses import store_accesses
from pruner.features.statement.array_helpers import column
from pruner.features.statement.memory import AccessFeatures, access_features, footprint, make_frame
from pruner.features.statement.ops import FLOAT, INT, OpCounter
from pruner.features.statement.touches import NodeKeys, Rows, Seen, TouchTable
from pruner.program.nests import LoopNests, Mark

MARKS = (Mark.VECTORIZE, Mark.UNROLL, Mark.PARALLEL)


class StoreAnalysis:
    """One store of N programs, or stores of one structure of several nests, measured.

    ``members``: the store in each nest; ``programs``: the place of each nest's programs among the
    N; ``store``: with the numbers of all programs; ``is_gpu``: a GPU index occurred at or before
    this store. ``columns`` and ``rows`` keep its statement columns and its dataflow rows on a CPU
    once they are computed.
    """

    def __init__(self, members: Sequence[StoreMember]) -> None:
        self.members = members
        self.store, buffers, places = joined_store(members)
        ends = np.cumsum([0, *(member.nests.num_programs for member in members)]).tolist()
        self.programs = [slice(*pair) for pair in pairwise(ends)]
        self.frame = make_frame(self.store.loops, ends[-1])
        levels = len(self.frame.loops)
        self._rows: list[Rows] = [slice(None) if len(x) == levels else x for x in places]
        self._feet = [footprint(one, self.frame) for one in store_accesses(buffers, self.store)]
        self._seen: list[tuple[Seen, Rows, slice]] = []
        self._marked: list[Floats] = []
        self._products = np.full((len(MARKS), self.frame.num), np.nan)  # NaN: no such loop
        for place, mark in enumerate(MARKS):
            if rows := self.frame.marked(mark):
                some, product = self.frame.present[rows].any(0), self.frame.extents[rows].prod(0)
                self._products[place] = np.where(some, product, np.nan)
        self.is_gpu = False
        self.columns: NDArray[np.float32] | None = None
        self.rows: NDArray[np.float32] | None = None

    def record(
        self, place: int, touches: TouchTable, marked: dict[int, Floats], *, is_gpu: bool
    ) -> None:
        """Record touches and marked loops (products by buffer) of the member at ``place``."""
        member, rows, programs = self.members[place], self._rows[place], self.programs[place]
        touched = [(foot.access, foot.elements[rows, programs]) for foot in self._feet]
        self._seen.append((touches.record(member.store, member.loops, touched), rows, programs))
        # feature.cc sets vec_prod and the like only where such a loop exists; the entry of an
        # earlier store to the buffer survives. Released models were trained on it.
        key, products = member.store.buffer.key, self._products[:, programs]
        marked[key] = np.where(np.isnan(products), marked.get(key, 0.0), products)
        self._marked.append(marked[key])
        self.is_gpu = is_gpu

    @cached_property
    def accesses(self) -> list[AccessFeatures]:
        """Accesses in order of first touch, the written buffer first."""
        seen = Seen.joined(self._seen, *self.frame.extents.shape)
        return access_features(self._feet, self.frame, seen)

    @cached_property
    def counts(self) -> list[IntLike]:
        """Counts of the 16 kinds of operations in one iteration."""
        return OpCounter(self.store).counts

    @cached_property
    def float_ops(self) -> Floats:
        """Floating-point operations of one iteration [N]."""
        return column(sum(self.counts[FLOAT:INT]), self.frame.num)

    @cached_property
    def work(self) -> Floats:
        """Floating-point operations [N]."""
        return self.float_ops * self.frame.iterations

    @property
    def touched_bytes(self) -> Floats:
        """Bytes that one run of each loop touches, [L, N]."""
        out = np.zeros_like(self.frame.extents)
        for foot in self._feet:
            out += foot.elements * foot.access.buffer.bytes_per_element
        return out

    @property
    def marked(self) -> Floats:
        """Products of the loops with each of :data:`MARKS`, [3, N]; see :meth:`record`."""
        return np.concatenate(self._marked, 1)


@dataclass(frozen=True, slots=True, eq=False)
class AnalysedStore:
    """The programs of one nest, by their places, in the analysis of a store."""

    analysis: StoreAnalysis
    programs: slice


def analyse(
    nests: Sequence[LoopNests], node_keys: NodeKeys = "recycled"
) -> list[list[AnalysedStore]]:
    """Measure the stores of each nest, in program order.

    Stores of one structure are measured together; several nests must have no GPU indices.
    ``node_keys``: identity of loops in the table of touches, see
    :func:`~pruner.features.statement.touches.number_loops`.
    """
    every = [[StoreMember.of(one, store) for store in one.stores] for one in nests]
    members = [member for some in every for member in some]
    # Stores of a single nest seldom are alike: comparing them would cost more than it saves.
    alike = [[one] for one in members] if len(nests) == 1 else grouped(members, store_structure)
    place_of = {
        member: (analysis, place)
        for analysis in map(StoreAnalysis, alike)
        for place, member in enumerate(analysis.members)
    }
    # Touches depend on the stores before, so they are recorded nest by nest in program order.
    for one, some in zip(nests, every, strict=True):
        touches, marked, is_gpu = TouchTable(one, node_keys), dict[int, Floats](), False
        for member in some:
            # feature.cc never resets the flag of the first GPU index: stores before keep 0.
            is_gpu = is_gpu or any(loop.is_bound for loop in member.store.loops)
            analysis, place = place_of[member]
            analysis.record(place, touches, marked, is_gpu=is_gpu)
    found = {
        member: AnalysedStore(analysis, analysis.programs[place])
        for member, (analysis, place) in place_of.items()
    }
    return [[found[member] for member in some] for some in every]
