"""Statement features: a row per written buffer, for N programs.

Definition: ``GetPerStoreFeature`` of TenSet's Ansor (src/auto_scheduler/feature.cc in the fork that
TenSet and the official Pruner release use). The functions below carry the original's groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, IntLike, Mask
from pruner.features.column import ColumnValues
from pruner.features.columns import (
    ACCESS_COLUMNS,
    COUNT_COLUMNS,
    CURVE_SAMPLES,
    MAX_BUFFERS,
    STATEMENT_COLUMNS,
    STATEMENT_INDEX,
)
from pruner.features.statement.analysis import StoreAnalysis
from pruner.features.statement.array_helpers import column, first_row, pick, slog
from pruner.features.statement.memory import AccessFeatures, LoopFrame
from pruner.program.index.affine import Truth, any_nonzero, everywhere, plain, where
from pruner.program.nests import BLOCKS, THREADS, Allocation, LoopNests, Mark

_MARKS = (Mark.VECTORIZE, Mark.UNROLL, Mark.PARALLEL)
_MARK_NAMES = ("vec", "unroll", "parallel")  # of the marks above, in the columns
Logs = dict[str, Floats]  # values of columns that are logarithms of them
_GPU_AXES = ("blockIdx_x", "blockIdx_y", "blockIdx_z", "threadIdx_x", "threadIdx_y", "threadIdx_z")


def statement_features(nests: LoopNests, analyses: list[StoreAnalysis]) -> NDArray[np.float32]:
    """Compute feature rows of N programs.

    Returns:
        float32 [N, S, statement columns], S = number of written buffers, in order of first store.
    """
    num = nests.num_programs
    latest: dict[int, StoreAnalysis] = {}
    products: dict[int, Floats] = {}
    for analysis in analyses:
        # feature.cc keys its rows by buffer: the last store wins, but keeps stale products (see
        # `Marked`).
        key = analysis.store.buffer.key
        latest[key] = analysis
        stale = products.get(key, np.zeros((len(_MARKS), num)))
        products[key] = Marked.of(analysis.frame).products(stale)
    out = np.empty((num, len(latest), len(STATEMENT_COLUMNS)), np.float32)
    for row, (key, analysis) in enumerate(latest.items()):
        stored = stored_sizes(nests.allocations.get(key), num)
        out[:, row] = statement_columns(analysis, products[key], stored).T
    return out


def statement_columns(
    analysis: StoreAnalysis, products: Floats, stored: Floats | None
) -> NDArray[np.float32]:
    """Return the columns of a buffer's last store, [column, N].

    ``products``: of its marked loops, see :class:`Marked`; ``stored``: see :func:`stored_sizes`.
    """
    table = ColumnValues(STATEMENT_INDEX, analysis.frame.num, np.float32)
    logs = _computation(table, analysis, products) | _scope(analysis)
    if stored is not None:
        logs |= _allocation(analysis, stored)
    # One logarithm over all columns: calls to NumPy cost more than the elements.
    for name, values in zip(logs, slog(np.array(list(logs.values()))), strict=True):
        table[name] = values
    _accesses(table, analysis)
    _intensity_curve(table, analysis)
    return table.array


def stored_sizes(allocation: Allocation | None, num: int) -> Floats | None:
    """Return elements of an allocation and iterations around it, [2, N].

    None without an allocation.
    """
    if allocation is None:
        return None
    out = np.ones((2, num))
    for extent in allocation.extents:
        out[0] *= extent
    for loop in allocation.loops:
        out[1] *= loop.extent
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """Loops around a store with each mark of :data:`_MARKS`, [3, N].

    ``some``: whether a program has such a loop; ``product``: the product of their extents.
    """

    some: Mask
    product: Floats

    @staticmethod
    def of(frame: LoopFrame) -> Marked:
        """Collect all loops around a store."""
        some, product = np.zeros((len(_MARKS), frame.num), bool), np.ones((len(_MARKS), frame.num))
        for place, mark in enumerate(_MARKS):
            rows = frame.marked(mark)
            if rows:
                some[place], product[place] = (
                    frame.present[rows].any(0),
                    frame.extents[rows].prod(0),
                )
        return Marked(some, product)

    def products(self, stale: Floats, programs: slice = slice(None)) -> Floats:
        """Return the products; without marked loops the ``stale`` value stays."""
        # feature.cc sets vec_prod and the like only where such a loop exists; the entry of an
        # earlier store to the buffer survives. Released models were trained on it.
        return np.where(self.some[:, programs], self.product[:, programs], stale)


def _computation(table: ColumnValues, analysis: StoreAnalysis, products: Floats) -> Logs:
    """Compute group 1: operation counts, annotated loops, GPU indices."""
    frame = analysis.frame
    logs: Logs = {
        column.name: count * frame.iterations
        for column, count in zip(COUNT_COLUMNS, analysis.counts, strict=True)
        if any_nonzero(count)
    }
    for mark, name, product in zip(_MARKS, _MARK_NAMES, products, strict=True):
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
            # Of nested indices of one axis (a cooperative fetch inside threads) the innermost
            # counts.
            logs[f"{name}_len"] = frame.extents[rows[-1]]
        else:
            # Absent GPU indices count as extent 1, whose shifted logarithm is 1.
            table[f"{name}_len"] = slog(1.0)
    vthreads = frame.marked(Mark.VTHREAD)
    logs["vthread_len"] = frame.extents[vthreads].prod(0)
    return logs


def _accesses(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Fill group 2: up to five buffers in the order of feature.cc.

    By (reuse distance, unique bytes, unique lines, kind).
    """
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
    # feature.cc compares floats of 32 bits: differences below their precision are ties.
    keys = [
        [
            np.asarray(key, np.float32)
            for key in (a.reuse.distance_bytes, a.unique_bytes, a.unique_lines, a.access.kind)
        ]
        for a in accesses
    ]
    ranks: list[IntLike] = [0] * len(keys)
    for i, mine in enumerate(keys):
        for j in range(i):
            first = _is_less(mine, keys[j])
            ranks[j] = ranks[j] + where(first, 1, 0)
            ranks[i] = ranks[i] + where(first, 0, 1)
    return [plain(rank) for rank in ranks]


def _is_less(keys: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Truth:
    """Return where the first differing key is smaller."""
    less: Truth = False
    equal: Truth = True
    for mine, other in zip(keys, others, strict=True):
        less = less | (equal & (mine < other))
        equal = equal & (mine == other)
        if not any_nonzero(equal):
            break
    return less


def _intensity_curve(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Fill group 3: log2(ops) / log2(bytes) at 10 points.

    The curve follows the nest from inside out. A missing loop repeats the point of the loop inside
    it, so it never is the first to pass a sample; loops missing at the very inside are skipped by
    ``start``.
    """
    frame = analysis.frame
    levels = len(frame.extents)
    ops = analysis.float_ops
    if levels == 0 or not bool((ops > 0).any()):
        return
    safe_ops = np.where(ops > 0, ops, 1.0)
    inside = np.empty_like(frame.extents)  # iterations of each loop and of those inside it
    inside[0] = frame.extents[-1]
    for row in range(1, levels):
        np.multiply(inside[row - 1], frame.extents[levels - 1 - row], out=inside[row])
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


def _allocation(analysis: StoreAnalysis, stored: Floats) -> Logs:
    """Return group 4: the buffer's own allocation."""
    elements, outer = stored
    return {
        "alloc_size": elements * analysis.accesses[0].access.bytes_per_element,
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
