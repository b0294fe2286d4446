"""Analyse the stores of loop nests in one pass; their statement features.

Definition of the row per written buffer: ``GetPerStoreFeature`` of TenSet's Ansor
(src/auto_scheduler/feature.cc in the fork that TenSet and the official Pruner release use).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, IntLike
from pruner.features.batched import StoreMember, grouped, joined_store, store_structure
from pruner.features.columns import (
    ACCESS_COLUMNS,
    COUNT_COLUMNS,
    CURVE_SAMPLES,
    MAX_BUFFERS,
    STATEMENT_COLUMNS,
    STATEMENT_INDEX,
    ColumnValues,
)
from pruner.features.statement.array_helpers import column, first_row, pick, slog
from pruner.features.statement.memory import AccessFeatures, access_features, footprint, make_frame
from pruner.features.statement.ops import FLOAT, INT, OpCounter
from pruner.features.statement.touches import NodeKeys, Rows, Seen, TouchTable, store_accesses
from pruner.program.index.affine import any_nonzero, everywhere, plain
from pruner.program.nests import BLOCKS, THREADS, LoopNests, Mark

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


# The analysis of a store, and the places of one nest's programs in it.
AnalysedStore = tuple[StoreAnalysis, slice]


def analyse(
    nests: Sequence[LoopNests], node_keys: NodeKeys = "recycled"
) -> list[list[AnalysedStore]]:
    """Measure the stores of each nest, in program order.

    Stores of one structure are measured together; several nests must have no GPU indices.
    ``node_keys``: identity of loops in the table of touches, see
    :func:`~pruner.features.statement.touches.number_loops`.
    """
    every = [
        [StoreMember(one, s, [x for x in s.loops if any_nonzero(x.present)]) for s in one.stores]
        for one in nests
    ]
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
        member: (analysis, analysis.programs[place])
        for member, (analysis, place) in place_of.items()
    }
    return [[found[member] for member in some] for some in every]


_MARK_NAMES = ("vec", "unroll", "parallel")  # of MARKS, in the columns
Logs = dict[str, Floats]  # values of columns that are logarithms of them
_GPU_AXES = ("blockIdx_x", "blockIdx_y", "blockIdx_z", "threadIdx_x", "threadIdx_y", "threadIdx_z")


def statement_features(nests: LoopNests, stores: Sequence[AnalysedStore]) -> NDArray[np.float32]:
    """Compute feature rows, float32 [N, S, column], of the S written buffers in order."""
    # feature.cc keys its rows by buffer: the last store wins.
    last = {store[0].store.buffer.key: store for store in stores}
    out = np.empty((nests.num_programs, len(last), len(STATEMENT_COLUMNS)), np.float32)
    for row, (analysis, programs) in enumerate(last.values()):
        if analysis.columns is None:
            analysis.columns = _statement_columns(analysis)
        out[:, row] = analysis.columns[:, programs].T
    return out


def _statement_columns(analysis: StoreAnalysis) -> NDArray[np.float32]:
    table = ColumnValues(STATEMENT_INDEX, analysis.frame.num, np.float32)
    logs = _computation(table, analysis) | _allocation(analysis) | _scope(analysis)
    # One logarithm over all columns: calls to NumPy cost more than the elements.
    for name, values in zip(logs, slog(np.array(list(logs.values()))), strict=True):
        table[name] = values
    _accesses(table, analysis)
    _intensity_curve(table, analysis)
    return table.array


def _computation(table: ColumnValues, analysis: StoreAnalysis) -> Logs:
    """Compute group 1: operation counts, annotated loops, GPU indices."""
    frame = analysis.frame
    logs: Logs = {
        column.name: count * frame.iterations
        for column, count in zip(COUNT_COLUMNS, analysis.counts, strict=True)
        if any_nonzero(count)
    }
    for mark, name, product in zip(MARKS, _MARK_NAMES, analysis.marked, strict=True):
        logs[f"{name}_prod"] = product
        rows = frame.marked(mark)
        if not rows:
            table[f"{name}_type.none"] = 1.0
            continue
        number = frame.present[rows].sum(0)
        innermost = np.zeros(frame.num)
        for row in rows:  # outermost first, so the innermost present loop stays
            innermost = np.where(frame.present[row], frame.extents[row], innermost)
        logs[f"{name}_num"], logs[f"{name}_len"] = number, innermost
        table[f"{name}_type.none"] = number == 0
        # feature.cc never sets the positions in between: only none and mixed occur.
        table[f"{name}_type.mixed"] = number > 0
    table["is_gpu"] = analysis.is_gpu
    for mark, name in zip((*BLOCKS, *THREADS), _GPU_AXES, strict=True):
        rows = frame.marked(mark)
        if rows:
            # Of nested indices of one axis (a fetch inside threads) the innermost counts.
            logs[f"{name}_len"] = frame.extents[rows[-1]]
        else:
            # Absent GPU indices count as extent 1, whose shifted logarithm is 1.
            table[f"{name}_len"] = slog(1.0)
    vthreads = frame.marked(Mark.VTHREAD)
    logs["vthread_len"] = frame.extents[vthreads].prod(0)
    return logs


def _accesses(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Fill group 2: buffers by (reuse distance, unique bytes, unique lines, kind)."""
    blocks = [a.log_columns() for a in analysis.accesses]  # [access columns, N] each
    ranks = _ranks(analysis.accesses)
    for place in range(min(len(blocks), MAX_BUFFERS)):
        chosen = blocks[0]
        for block, rank in zip(blocks[1:], ranks[1:], strict=True):
            here = rank == place
            if everywhere(here):
                chosen = block
            elif any_nonzero(here):
                chosen = np.where(here, block, chosen)
        table.set_block(f"B{place}.{ACCESS_COLUMNS[0].name}", chosen)


def _ranks(accesses: Sequence[AccessFeatures]) -> list[IntLike]:
    """Return each access's place in the order; ties keep their order."""
    num, order = len(accesses[0].bytes), np.arange(len(accesses))
    keys = [
        (a.reuse.distance_bytes, a.unique_bytes, a.unique_lines, np.full(num, a.access.kind))
        for a in accesses
    ]
    less = np.zeros((len(accesses), len(accesses), num), bool)
    equal = ~less
    # feature.cc compares floats of 32 bits: differences below their precision are ties.
    for key in np.array(keys, np.float32).swapaxes(0, 1):
        less |= equal & (key[:, None] < key)
        equal &= key[:, None] == key
    earlier = np.less.outer(order, order)[:, :, None]
    return [plain(rank) for rank in (less | (equal & earlier)).sum(0)]


def _intensity_curve(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Fill group 3: log2(ops) / log2(bytes) at 10 points, from inside out.

    A missing loop repeats the point of the loop inside it; ``start`` skips those at the very
    inside.
    """
    frame = analysis.frame
    levels = len(frame.extents)
    ops = analysis.float_ops
    if levels == 0 or not bool((ops > 0).any()):
        return
    safe_ops = np.where(ops > 0, ops, 1.0)
    # Iterations of each loop and of those inside it, from inside.
    inside = np.array([*accumulate(frame.extents[::-1], np.multiply)])
    x = np.log2(safe_ops * inside)
    ratio = x / np.log2(analysis.touched_bytes[::-1])
    present = frame.present[::-1]
    start = first_row(present)
    usable = (ops > 0) & (start < levels)
    start = np.where(usable, start, 0)
    total = x[-1]
    at = total * np.arange(1, CURVE_SAMPLES + 1)[:, None] / CURVE_SAMPLES  # [sample, N]
    # x never falls from level to level, so counting the smaller levels finds the first not smaller.
    # feature.cc's tolerance for a sample that lies on a point.
    smaller = (x[:, None] < at - 1e-4).view(np.uint8)
    point = np.maximum(np.add.reduce(smaller, axis=0, dtype=np.uint8), start)
    before = np.maximum(point - 1, 0)
    x1, x0 = pick(x, point), pick(x, before)
    y1, y0 = pick(ratio, point), pick(ratio, before)
    step = np.where(x1 > x0, x1 - x0, 1.0)
    # At the first point there is nothing to interpolate from: its own value.
    value = np.where(point == start, y1, y0 + (y1 - y0) / step * (at - x0))
    table.set_block("arith_intensity_curve_0", np.where(usable, value, 0.0))


def _allocation(analysis: StoreAnalysis) -> Logs:
    """Return group 4: the buffer's own allocation."""
    sizes = []
    for member in analysis.members:
        allocation = member.nests.allocations.get(analysis.store.buffer.key)
        if allocation is None:
            return {}
        elements, outer = np.ones((2, member.nests.num_programs))
        for extent in allocation.extents:
            elements *= extent
        for loop in allocation.loops:
            outer *= loop.extent
        sizes.append((elements, outer))
    elements, outer = np.concatenate(sizes, 1)
    return {
        "alloc_size": elements * analysis.accesses[0].access.buffer.bytes_per_element,
        "alloc_prod": elements * outer,
        "alloc_outer_prod": outer,
        "alloc_inner_prod": analysis.frame.iterations / outer,
    }


def _scope(analysis: StoreAnalysis) -> Logs:
    """Return group 5: the loops around the store."""
    frame = analysis.frame
    return {
        "outer_prod": frame.iterations,
        "num_loops": frame.present.sum(0),
        "auto_unroll_max_step": column(analysis.store.unroll, frame.num),
    }
