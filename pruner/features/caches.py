"""Dataflow rows of CPU programs: data moved between memory, caches and registers.

The loops inside some depth touch what a cache holds, so the rows are those of the GPU pattern
(:mod:`pruner.features.dataflow`) with levels in the place of scopes:

| rows | data | location |
|---|---|---|
| 0 | the result's tile begins, in registers | local |
| 1, 2 and 3, 4 | each of two operands: from memory (or L3) to L2, from L2 to L1 | global, shared |
| 5, 6 | the operands from L1 to registers, with the operations of the statement | shared |
| 7 | the result in registers, with the operations | local |
| 8, 9 | the result to L2, and to memory | local, global |

They are of the statement with most floating-point operations (the last one of equals), with the two
operands that move most from L1 to registers. Traffic follows the capacity rule of the CPU symbols
(:mod:`pruner.features.symbols.cpu`) in caches of nominal sizes, so that a program has the same
features on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, Ints
from pruner.features.columns import DATAFLOW_INDEX
from pruner.features.statement.analysis import AnalysedStore, StoreAnalysis
from pruner.features.statement.array_helpers import column, fitting_depth, pick, runs_of
from pruner.features.statement.memory import CACHE_LINE_BYTES, AccessFeatures, Footprint, LoopFrame
from pruner.features.statement.reuse import LOOP, NONE, Reuse

REGISTERS, L1, L2 = range(3)
BYTES = (1 << 10, 1 << 15, 1 << 20)  # of every level: 16 vectors of 64 bytes, 32 KiB, 1 MiB
_LOCATIONS = ("local", "shared", "global")
_OPERANDS = 2
_Crossing = tuple[AccessFeatures, Floats]  # and the bytes of the access that the level holds


def cpu_rows(stores: Sequence[AnalysedStore], num: int, rows: int) -> NDArray[np.float32]:
    """Return rows of the N programs of a nest, float32 [N, rows, dataflow columns]."""
    out = np.zeros((num, rows, len(DATAFLOW_INDEX)), np.float32)
    if not stores:
        return out
    chosen = busiest([store.analysis.work[store.programs] for store in stores])
    for number in np.unique(chosen):
        store, here = stores[number], chosen == number
        if store.analysis.rows is None:
            store.analysis.rows = statement_rows(store.analysis, rows)
        out[here] = store.analysis.rows[store.programs][here]
    return out


def busiest(work: Sequence[Floats]) -> Ints:
    """Return each program's statement with most ``work``, [N]; the last among equals."""
    # argmax gives the first maximum, so the list is reversed to take the last.
    return np.asarray(len(work) - 1 - np.stack(work)[::-1].argmax(0))


def statement_rows(analysis: StoreAnalysis, rows: int) -> NDArray[np.float32]:
    """Return the rows of one statement; operands are chosen per program."""
    num, work = analysis.frame.num, analysis.work
    crossings = _crossings(analysis)
    written, *reads = range(len(analysis.accesses))  # the written buffer is listed first
    out = np.zeros((rows, len(DATAFLOW_INDEX), num))

    def row(access: int, level: int, location: int, ops: Floats | float = 0.0) -> Floats:
        crossing, tile = crossings[access][level]
        return crossing.flow_columns(_LOCATIONS[location], ops, tile)

    out[7] = row(written, REGISTERS, REGISTERS, work)
    out[0] = out[7]
    # The first row is the initialisation: it computes nothing.
    out[0, DATAFLOW_INDEX["float_ops"]] = 0.0
    out[8] = row(written, L1, REGISTERS)
    out[9] = row(written, L2, L2)
    # The two operands with most bytes moved to registers, which may differ between programs.
    moved = [crossings[access][REGISTERS][0].bytes for access in reads]
    loads = np.reshape(moved, (len(reads), num))
    order = np.argsort(-loads, axis=0, kind="stable")[:_OPERANDS]
    for place, access in enumerate(reads):
        if not (order == place).any():
            continue
        from_memory, from_l2 = row(access, L2, L2), row(access, L1, L1)
        to_registers = row(access, REGISTERS, L1, work)
        for operand, chosen in enumerate(order):
            here = chosen == place
            out[1 + 2 * operand][:, here] = from_memory[:, here]
            out[2 + 2 * operand][:, here] = from_l2[:, here]
            out[5 + operand][:, here] = to_registers[:, here]
    return out.transpose(2, 0, 1).astype(np.float32)


def _crossings(analysis: StoreAnalysis) -> list[list[_Crossing]]:
    """Return each access as it crosses into each level, by access and level.

    ``bytes`` and ``lines`` are those that cross, ``unique_bytes`` those of the whole program. The
    reuse is that of the crossing bytes in the next level inwards; its distance is the level's: the
    iterations of its loops, and the bytes that it holds of all accesses.
    """
    frame = analysis.frame
    boxes = [_boxes(one.foot, frame) for one in analysis.accesses]
    held = np.sum([box for box, _ in boxes], axis=0)  # [L + 1, N]
    start = np.ones(frame.num)
    inside = np.array([*accumulate(frame.extents[::-1], np.multiply, initial=start)])[::-1]
    out: list[list[_Crossing]] = [[] for _ in boxes]
    for size in BYTES:
        # From the outermost depth that fits inwards no iteration misses.
        depth, around = fitting_depth(held, size)
        # A tile crosses once for the loop directly around, as far as that loop moves it.
        times = frame.iterations / pick(inside, around)
        for one, (box, lines), levels in zip(analysis.accesses, boxes, out, strict=True):
            moved = pick(box, around) * times
            # From registers every touch counts; from a cache, what the next level fetched of it.
            used = levels[-1][0].bytes if levels else one.bytes
            count = used / np.maximum(moved, 1.0)
            kind, count = np.where(count > 1.0, LOOP, NONE), np.where(count > 1.0, count, 0.0)
            bytes_held = pick(held, depth)
            crossing = AccessFeatures(
                foot=one.foot,
                bytes=moved,
                unique_bytes=box[0],
                lines=pick(lines, around) * times,
                unique_lines=np.ceil(box[0] / CACHE_LINE_BYTES),
                reuse=Reuse(kind, pick(inside, depth), bytes_held, count, bytes_held),
                stride=one.stride,
            )
            levels.append((crossing, pick(box, depth)))
    return out


def _boxes(foot: Footprint, frame: LoopFrame) -> tuple[Floats, Floats]:
    """Return bytes and cache lines of the box from every depth, [depth, N]."""
    size = foot.access.buffer.bytes_per_element
    levels, num = frame.extents.shape
    sizes = [column(extent, num) for extent in foot.access.buffer.shape]
    widths = [np.minimum(foot.width(place), extent) for place, extent in enumerate(sizes)]
    # Rows that are touched whole join into longer runs, which share cache lines.
    run, rows = runs_of(widths, sizes, (levels, num))
    elements, lines = np.ones((levels + 1, num)), np.ones((levels + 1, num))
    elements[:levels] = run * rows
    lines[:levels] = np.ceil(run * size / CACHE_LINE_BYTES) * rows
    return elements * size, lines
