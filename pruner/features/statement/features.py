"""The statement features: one row per written buffer, for N programs at once.

Definition: ``GetPerStoreFeature`` of TenSet's Ansor (src/auto_scheduler/feature.cc in the fork that
TenSet and the official Pruner release use). The functions below carry the original's groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, Mask
from pruner.features.column import ColumnValues
from pruner.features.columns import (
    ACCESS_COLUMNS,
    COUNT_COLUMNS,
    CURVE_SAMPLES,
    MAX_BUFFERS,
    STATEMENT_COLUMNS,
    STATEMENT_PLACES,
)
from pruner.features.statement.analysis import StoreAnalysis
from pruner.features.statement.memory import LoopFrame
from pruner.features.statement.tensors import column, pick, slog
from pruner.program.nests import BLOCKS, THREADS, Allocation, LoopNests, Mark

_MARKS = (Mark.VECTORIZE, Mark.UNROLL, Mark.PARALLEL)
_MARK_NAMES = ("vec", "unroll", "parallel")  # of the marks above, in the columns
_GPU_AXES = ("blockIdx_x", "blockIdx_y", "blockIdx_z", "threadIdx_x", "threadIdx_y", "threadIdx_z")


def statement_features(nests: LoopNests, analyses: list[StoreAnalysis]) -> NDArray[np.float32]:
    """Feature rows of N programs.

    Returns:
        float32 [N, S, statement columns], S = number of written buffers, in order of first store.
    """
    num = nests.num_programs
    latest: dict[int, StoreAnalysis] = {}
    products: dict[int, Floats] = {}
    for analysis in analyses:
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
    """The columns of the last store of a buffer, [column, N].

    ``products``: of its marked loops, see :class:`Marked`; ``stored``: see :func:`stored_sizes`.
    """
    table = ColumnValues(STATEMENT_PLACES, analysis.frame.num, np.float32)
    _computation(table, analysis, products)
    _accesses(table, analysis)
    _intensity_curve(table, analysis)
    if stored is not None:
        _allocation(table, analysis, stored)
    _scope(table, analysis)
    return table.array


def stored_sizes(allocation: Allocation | None, num: int) -> Floats | None:
    """Elements of an allocation, and iterations of the loops around it, [2, N]; None for none."""
    if allocation is None:
        return None
    out = np.ones((2, num))
    for extent in allocation.extents:
        out[0] *= extent
    for loop in allocation.loops:
        out[1] *= loop.extent
    return out


def _marked(frame: LoopFrame, mark: Mark) -> list[int]:
    return [row for row, loop in enumerate(frame.loops) if loop.mark is mark]


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """The loops around a store with each of the marks of :data:`_MARKS`: whether a program has
    ``some``, and the ``product`` of their extents, [3, N]."""

    some: Mask
    product: Floats

    @staticmethod
    def of(frame: LoopFrame) -> Marked:
        """Of all loops around a store."""
        some, product = np.zeros((len(_MARKS), frame.num), bool), np.ones((len(_MARKS), frame.num))
        for place, mark in enumerate(_MARKS):
            rows = _marked(frame, mark)
            if rows:
                some[place], product[place] = (
                    frame.present[rows].any(0),
                    frame.extents[rows].prod(0),
                )
        return Marked(some, product)

    def products(self, stale: Floats, programs: slice = slice(None)) -> Floats:
        """Of ``programs``; without marked loops a store keeps its buffer's ``stale`` value."""
        return np.where(self.some[:, programs], self.product[:, programs], stale)


def _computation(table: ColumnValues, analysis: StoreAnalysis, products: Floats) -> None:
    """Group 1: operation counts, annotated loops, GPU indices."""
    frame = analysis.frame
    table.set_block(COUNT_COLUMNS[0].name, slog(np.stack(analysis.counts) * frame.iterations))
    for mark, name, product in zip(_MARKS, _MARK_NAMES, products, strict=True):
        rows = _marked(frame, mark)
        number = frame.present[rows].sum(0) if rows else np.zeros(frame.num)
        innermost = np.zeros(frame.num)
        for row in rows:  # outermost first, so the innermost present loop stays
            innermost = np.where(frame.present[row], frame.extents[row], innermost)
        table[f"{name}_num"] = slog(number)
        table[f"{name}_prod"] = slog(product)
        table[f"{name}_len"] = slog(innermost)
        table[f"{name}_type.none"] = number == 0
        table[f"{name}_type.mixed"] = number > 0
    table["is_gpu"] = analysis.is_gpu
    for mark, name in zip((*BLOCKS, *THREADS), _GPU_AXES, strict=True):
        rows = _marked(frame, mark)
        table[f"{name}_len"] = slog(frame.extents[rows[-1]] if rows else 1.0)
    vthreads = _marked(frame, Mark.VTHREAD)
    table["vthread_len"] = slog(frame.extents[vthreads].prod(0) if vthreads else 1.0)


def _accesses(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Group 2: up to five buffers, by (reuse distance, unique bytes, unique lines, kind)."""
    num = analysis.frame.num
    accesses = analysis.accesses
    blocks = np.stack([a.log_columns() for a in accesses])  # [B, access columns, N]
    keys = (
        np.stack([np.full(num, float(a.access.kind)) for a in accesses]),
        np.stack([a.unique_lines for a in accesses]),
        np.stack([a.unique_bytes for a in accesses]),
        np.stack([a.reuse.distance_bytes for a in accesses]),
    )
    order = np.lexsort(tuple(k.astype(np.float32) for k in keys), axis=0)[:MAX_BUFFERS]
    ordered = np.take_along_axis(blocks, order[:, None, :], 0)
    table.set_block(f"B0.{ACCESS_COLUMNS[0].name}", ordered.reshape(-1, num))


def _intensity_curve(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Group 3: log2(ops) / log2(bytes) as the nest grows from inside out, at 10 points.

    A missing loop repeats the point of the loop inside it, so it never is the first to pass a
    sample; loops missing at the very inside are skipped by ``start``.
    """
    frame = analysis.frame
    levels = len(frame.extents)
    ops = analysis.float_ops
    if levels == 0 or not bool((ops > 0).any()):
        return
    safe_ops = np.where(ops > 0, ops, 1.0)
    x = np.log2(safe_ops * frame.extents[::-1].cumprod(0))
    ratio = x / np.log2(analysis.touched_bytes[::-1])
    present = frame.present[::-1]
    start = present.argmax(0)
    usable = (ops > 0) & present.any(0)
    total = x[-1]
    at = total * np.arange(1, CURVE_SAMPLES + 1)[:, None] / CURVE_SAMPLES  # [sample, N]
    point = np.maximum((x >= at[:, None] - 1e-4).argmax(1), start)
    before = np.maximum(point - 1, 0)
    x1, x0 = pick(x, point), pick(x, before)
    y1, y0 = pick(ratio, point), pick(ratio, before)
    step = np.where(x1 > x0, x1 - x0, 1.0)
    value = np.where(point == start, y1, y0 + (y1 - y0) / step * (at - x0))
    table.set_block("arith_intensity_curve_0", np.where(usable, value, 0.0))


def _allocation(table: ColumnValues, analysis: StoreAnalysis, stored: Floats) -> None:
    """Group 4: the buffer's own allocation."""
    elements, outer = stored
    table["alloc_size"] = slog(elements * analysis.accesses[0].access.bytes_per_element)
    table["alloc_prod"] = slog(elements * outer)
    table["alloc_outer_prod"] = slog(outer)
    table["alloc_inner_prod"] = slog(analysis.frame.iterations / outer)


def _scope(table: ColumnValues, analysis: StoreAnalysis) -> None:
    """Group 5: the loops around the store."""
    frame = analysis.frame
    table["outer_prod"] = slog(frame.iterations)
    table["num_loops"] = slog(frame.present.sum(0))
    table["auto_unroll_max_step"] = slog(column(analysis.store.unroll, frame.num))
