"""The 164 statement features: one row per written buffer, for N programs at once.

Definition: ``GetPerStoreFeature`` of TenSet's Ansor (src/auto_scheduler/feature.cc in the fork that
TenSet and the official Pruner release use). The functions below carry the original's groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.statement.analysis import StoreAnalysis
from pruner.features.statement.memory import LoopFrame
from pruner.features.statement.ops import NUM_COUNTS
from pruner.features.statement.tensors import column, slog
from pruner.program.nests import BLOCKS, THREADS, Allocation, LoopNests, Mark

NUM_COLUMNS = 164
MAX_BUFFERS = 5
ACCESS_COLUMNS = 18
CURVE_SAMPLES = 10
_MARKS = (Mark.VECTORIZE, Mark.UNROLL, Mark.PARALLEL)
_ANNOTATION_START, _IS_GPU, _BUFFER_START, _CURVE_START = 16, 49, 57, 147
_ALLOC_START, _SCOPE_START, _MIXED = 157, 161, 7


def statement_features(nests: LoopNests, analyses: list[StoreAnalysis]) -> NDArray[np.float32]:
    """Feature rows of N programs.

    Returns:
        float32 [N, S, 164], S = number of written buffers, in order of first store.
    """
    num = nests.num_programs
    latest: dict[int, StoreAnalysis] = {}
    products: dict[int, list[Floats]] = {}
    for analysis in analyses:
        key = analysis.store.buffer.key
        latest[key] = analysis
        stale = products.get(key, [np.zeros(num)] * 3)
        products[key] = [
            _annotation_product(analysis.frame, mark, old)
            for mark, old in zip(_MARKS, stale, strict=True)
        ]
    out = np.zeros((num, len(latest), NUM_COLUMNS), np.float32)
    for row, (key, analysis) in enumerate(latest.items()):
        table = np.zeros((NUM_COLUMNS, num))
        _computation(table, analysis, products[key])
        _accesses(table, analysis)
        _intensity_curve(table, analysis)
        allocation = nests.allocations.get(key)
        if allocation is not None:
            _allocation(table, analysis, allocation)
        frame = analysis.frame
        table[_SCOPE_START] = slog(frame.iterations)
        table[_SCOPE_START + 1] = slog(frame.present.sum(0))
        table[_SCOPE_START + 2] = slog(column(analysis.store.unroll, num))
        out[:, row] = table.T
    return out


def _marked(frame: LoopFrame, mark: Mark) -> list[int]:
    return [row for row, loop in enumerate(frame.loops) if loop.mark is mark]


def _annotation_product(frame: LoopFrame, mark: Mark, stale: Floats) -> Floats:
    """Product of the marked loops; an unmarked store keeps its buffer's earlier value."""
    rows = _marked(frame, mark)
    if not rows:
        return stale
    some = frame.present[rows].any(0)
    return np.where(some, frame.extents[rows].prod(0), stale)


def _computation(table: Floats, analysis: StoreAnalysis, products: list[Floats]) -> None:
    """Group 1: operation counts, annotated loops, GPU indices."""
    frame = analysis.frame
    for c in range(NUM_COUNTS):
        table[c] = slog(analysis.counts[c] * frame.iterations)
    base = _ANNOTATION_START
    for mark, product in zip(_MARKS, products, strict=True):
        rows = _marked(frame, mark)
        number = frame.present[rows].sum(0) if rows else np.zeros(frame.num)
        innermost = np.zeros(frame.num)
        for row in rows:  # outermost first, so the innermost present loop stays
            innermost = np.where(frame.present[row], frame.extents[row], innermost)
        table[base] = slog(number)
        table[base + 1] = slog(product)
        table[base + 2] = slog(innermost)
        table[base + 3] = number == 0
        table[base + 3 + _MIXED] = number > 0
        base += 11
    table[_IS_GPU] = analysis.is_gpu
    for i, mark in enumerate((*BLOCKS, *THREADS)):
        rows = _marked(frame, mark)
        table[_IS_GPU + 1 + i] = slog(frame.extents[rows[-1]] if rows else 1.0)
    vthreads = _marked(frame, Mark.VTHREAD)
    table[_IS_GPU + 7] = slog(frame.extents[vthreads].prod(0) if vthreads else 1.0)


def _accesses(table: Floats, analysis: StoreAnalysis) -> None:
    """Group 2: up to five buffers, by (reuse distance, unique bytes, unique lines, kind)."""
    num = analysis.frame.num
    accesses = analysis.accesses
    blocks = np.stack([a.log_columns() for a in accesses])  # [B, 18, N]
    keys = (
        np.stack([np.full(num, float(a.access.kind)) for a in accesses]),
        np.stack([a.unique_lines for a in accesses]),
        np.stack([a.unique_bytes for a in accesses]),
        np.stack([a.reuse.distance_bytes for a in accesses]),
    )
    order = np.lexsort(tuple(k.astype(np.float32) for k in keys), axis=0)[:MAX_BUFFERS]
    ordered = np.take_along_axis(blocks, order[:, None, :], 0)
    flat = ordered.reshape(-1, num)
    table[_BUFFER_START : _BUFFER_START + len(flat)] = flat


def _intensity_curve(table: Floats, analysis: StoreAnalysis) -> None:
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
    for sample in range(CURVE_SAMPLES):
        at = total * (sample + 1) / CURVE_SAMPLES
        point = np.maximum((x >= at - 1e-4).argmax(0), start)
        before = np.maximum(point - 1, 0)
        x1, x0 = _pick(x, point), _pick(x, before)
        y1, y0 = _pick(ratio, point), _pick(ratio, before)
        step = np.where(x1 > x0, x1 - x0, 1.0)
        value = np.where(point == start, y1, y0 + (y1 - y0) / step * (at - x0))
        table[_CURVE_START + sample] = np.where(usable, value, 0.0)


def _pick(table: Floats, row: NDArray[np.int64]) -> Floats:
    return np.take_along_axis(table, row[None], 0)[0]


def _allocation(table: Floats, analysis: StoreAnalysis, allocation: Allocation) -> None:
    """Group 4: the buffer's own allocation."""
    num = analysis.frame.num
    elements = np.ones(num)
    for extent in allocation.extents:
        elements = elements * extent
    outer = np.ones(num)
    for loop in allocation.loops:
        outer = outer * loop.extent
    table[_ALLOC_START] = slog(elements * analysis.accesses[0].access.bytes_per_element)
    table[_ALLOC_START + 1] = slog(elements * outer)
    table[_ALLOC_START + 2] = slog(outer)
    table[_ALLOC_START + 3] = slog(analysis.frame.iterations / outer)
