"""Dataflow features: the multi-tiling pattern as a sequence of buffer touches.

Paper: `NUM_ROWS` rows of `DATAFLOW_COLUMNS` (Pruner, section "PaCM"); official code: the same
without the epilogue (src/auto_scheduler/feature_pam.cc). Every store appends one row for each
buffer it touches, sources before the destination: *initialise a local tile, stage two operands
through shared memory, accumulate* has the locations 2, 0 1, 0 1, 1 1 2. GPU programs without the
pattern have zero rows.

On tensor cores fragments and accumulators are local. The kind ``fragments`` is ``paper`` with four
rows more before the product, shared memory and fragment of each operand.

The rows of CPU programs are data moved between memory, caches and registers. The loops inside some
depth touch what a cache holds, so they are those of the GPU pattern with levels in the place of
scopes:

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
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.columns import DATAFLOW_COLUMNS, DATAFLOW_INDEX
from pruner.features.statement.analysis import AnalysedStore, StoreAnalysis
from pruner.features.statement.array_helpers import column, fitting_depth, pick, runs_of
from pruner.features.statement.memory import CACHE_LINE_BYTES, AccessFeatures, Footprint, LoopFrame
from pruner.features.statement.touches import LOOP, NONE, Reuse
from pruner.program.nests import ACCUMULATORS, GLOBAL, LOCAL, SHARED, LoopNests, Scope

_Touch = tuple[StoreAnalysis, AccessFeatures]
DataflowKind = Literal["paper", "official", "fragments"]
_PATTERN = (LOCAL, GLOBAL, SHARED, GLOBAL, SHARED, SHARED, SHARED, LOCAL)
_LOCATIONS = {GLOBAL: "global", SHARED: "shared"}  # all others are registers: local
_FRAGMENTS = (
    (Scope.FRAGMENT_A, Scope.FRAGMENT_B, Scope.ACCUMULATOR),
    (Scope.MMA_A, Scope.MMA_B, Scope.MMA_C),
)
_ON_CORES = tuple(
    (acc, GLOBAL, SHARED, GLOBAL, SHARED, SHARED, a, SHARED, b, b, a, acc)
    for a, b, acc in _FRAGMENTS
)
_LOADS_OF_FRAGMENTS = slice(5, 9)  # of the pattern above
_EPILOGUE_ROWS = 2  # see _epilogue
NUM_ROWS: dict[str, int] = {
    "paper": len(_PATTERN) + _EPILOGUE_ROWS,
    "official": len(_PATTERN),
    "fragments": len(_ON_CORES[0]) + _EPILOGUE_ROWS,
}


def kind_of(num_rows: int | None) -> DataflowKind:
    """Return the kind with so many rows, ``paper`` for None; raise `ValueError` else.

    >>> kind_of(8), kind_of(10), kind_of(14), kind_of(None)
    ('official', 'paper', 'fragments', 'paper')
    """
    for kind in get_args(DataflowKind):
        if num_rows in (None, NUM_ROWS[kind]):
            found: DataflowKind = kind
            return found
    raise ValueError(f"{num_rows} dataflow rows; known: {sorted(NUM_ROWS.values())}")


def dataflow_features(
    nests: LoopNests, stores: Sequence[AnalysedStore], kind: DataflowKind = "paper"
) -> NDArray[np.float32]:
    """Compute dataflow rows of N programs, float32 [N, rows, dataflow columns].

    ``kind``: see above; ``official`` has the release's slip in the operation count. All zero where
    the program (``stores`` of :func:`analyse`) does not have the pattern.
    """
    out = np.zeros((nests.num_programs, NUM_ROWS[kind], len(DATAFLOW_COLUMNS)), np.float32)
    own = _LOADS_OF_FRAGMENTS if kind == "fragments" else slice(0)  # rows of this kind alone
    common = np.delete(np.arange(NUM_ROWS[kind]), own)
    analyses = [analysis for analysis, _ in stores]
    if kind != "official" and not any(analysis.is_gpu for analysis in analyses):
        out[:, common] = cpu_rows(stores, nests.num_programs, len(common))
        return out
    chosen, loads = _touches(analyses)
    if chosen and kind != "official":
        chosen = chosen + _epilogue(analyses, chosen[-1])
    rows = [*zip(common.tolist(), chosen, strict=False)]
    if kind == "fragments":
        rows += zip(range(own.start, own.stop), loads, strict=False)
    for row, (analysis, access) in rows:
        out[:, row] = _row(nests, analysis, access, kind).T
    return out


def _touches(analyses: list[StoreAnalysis]) -> tuple[list[_Touch], list[_Touch]]:
    """Return the touches of the pattern, and the loads of fragments; empty without it."""
    # The last buffer touched comes first: libstdc++'s unordered_map lists the newest entry first.
    steps = [(a, access) for a in analyses for access in reversed(a.accesses)]
    places = [access.access.buffer.scope for _, access in steps]
    start, on_cores = _find(places, _PATTERN), max(_find(places, one) for one in _ON_CORES)
    if start >= 0:
        return steps[start : start + len(_PATTERN)], []
    if on_cores < 0:
        return [], []
    chosen = steps[on_cores : on_cores + len(_ON_CORES[0])]
    loads = chosen[_LOADS_OF_FRAGMENTS]
    del chosen[_LOADS_OF_FRAGMENTS]
    return chosen, loads


def _find(places: list[Scope], pattern: tuple[Scope, ...]) -> int:
    width = len(pattern)
    starts = range(len(places) - width + 1)
    return next((s for s in starts if tuple(places[s : s + width]) == pattern), -1)


def _epilogue(analyses: list[StoreAnalysis], accumulate: _Touch) -> list[_Touch]:
    analysis, tile = accumulate
    for later in analyses[analyses.index(analysis) + 1 :]:
        for access in later.accesses[1:]:
            if access.access.buffer is tile.access.buffer:
                # Accumulators leave through shared memory: the result is the last store.
                last = analyses[-1] if tile.access.buffer.scope in ACCUMULATORS else later
                return [(later, access), (last, last.accesses[0])]
    return []


def _row(
    nests: LoopNests, analysis: StoreAnalysis, access: AccessFeatures, kind: DataflowKind
) -> Floats:
    buffer = access.access.buffer
    allocation = nests.allocations.get(buffer.key)
    size = column(0 if allocation is None else buffer.bytes_per_element, nests.num_programs)
    for extent in () if allocation is None else allocation.extents:
        size = size * extent
    # The release multiplies by the loop product twice (its norm vectors prove it), a slip that its
    # weights have learned with; the paper's rows count every operation once.
    power = 2 if kind == "official" else 1
    ops = analysis.float_ops * analysis.frame.iterations**power
    # ``kept``: the allocator's state in the release's dataflow extractor, see `Reuse`.
    return access.flow_columns(_LOCATIONS.get(buffer.scope, "local"), ops, size, kept=True)


REGISTERS, L1, L2 = range(3)
BYTES = (1 << 10, 1 << 15, 1 << 20)  # of every level: 16 vectors of 64 bytes, 32 KiB, 1 MiB
_LEVELS = ("local", "shared", "global")
_OPERANDS = 2
_Crossing = tuple[AccessFeatures, Floats]  # and the bytes of the access that the level holds


def cpu_rows(stores: Sequence[AnalysedStore], num: int, rows: int) -> NDArray[np.float32]:
    """Return rows of the N programs of a nest, float32 [N, rows, dataflow columns]."""
    out = np.zeros((num, rows, len(DATAFLOW_INDEX)), np.float32)
    if not stores:
        return out
    work = np.stack([analysis.work[programs] for analysis, programs in stores])
    # The last statement of equals: argmax gives the first maximum of the reversed list.
    chosen = len(stores) - 1 - work[::-1].argmax(0)
    for number in np.unique(chosen):
        (analysis, programs), here = stores[number], chosen == number
        if analysis.rows is None:
            analysis.rows = statement_rows(analysis, rows)
        out[here] = analysis.rows[programs][here]
    return out


def statement_rows(analysis: StoreAnalysis, rows: int) -> NDArray[np.float32]:
    """Return the rows of one statement; operands are chosen per program."""
    num, work = analysis.frame.num, analysis.work
    crossings = _crossings(analysis)
    written, *reads = range(len(analysis.accesses))  # the written buffer is listed first
    out = np.zeros((rows, len(DATAFLOW_INDEX), num))

    def row(access: int, level: int, location: int, ops: Floats | float = 0.0) -> Floats:
        crossing, tile = crossings[access][level]
        return crossing.flow_columns(_LEVELS[location], ops, tile)

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
