"""Dataflow rows of CPU programs: data moved between memory, caches and registers.

GPU programs state which tile goes to shared memory and which to registers, and the
dataflow rows are the touches of these buffers (:mod:`pruner.features.dataflow`). On CPUs the same
tiles exist without a name: the loops inside some depth touch what a cache holds, and the rows are
those of the GPU pattern with levels in the place of scopes:

| rows | data | location |
|---|---|---|
| 0 | the result's tile begins, in registers | local |
| 1, 2 and 3, 4 | each of two operands: from memory (or L3) to L2, from L2 to L1 | global, shared |
| 5, 6 | the operands from L1 to registers, with the operations of the statement | shared |
| 7 | the result in registers, with the operations | local |
| 8, 9 | the result to L2, and to memory | local, global |

They are of the statement with most floating-point operations (the last one of equals), its two
operands being those that move most from L1 to registers.

*Traffic* into a level of ``C`` bytes follows the capacity rule of the CPU symbols
(:mod:`pruner.features.symbols.cpu`): the loops from the outermost depth inwards whose footprint
fits run without misses, so a tile crosses once for every iteration of the loops around, except of
the one directly around as far as that does not move it. Levels have nominal sizes, not those of a
device: a feature of a program is the same on every device, and a model learns the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, Ints
from pruner.features.batched import BatchedStores
from pruner.features.column import ColumnValues
from pruner.features.columns import DATAFLOW_INDEX
from pruner.features.statement.analysis import StoreAnalysis
from pruner.features.statement.array_helpers import column, pick, slog
from pruner.features.statement.memory import CACHE_LINE_BYTES, AccessFeatures, LoopFrame

REGISTERS, L1, L2 = range(3)
BYTES = (1 << 10, 1 << 15, 1 << 20)  # of every level: 16 vectors of 64 bytes, 32 KiB, 1 MiB
_LOCATIONS = ("local", "shared", "global")
_OPERANDS = 2


@dataclass(frozen=True, slots=True)
class Crossing:
    """Crossing of one access into one level; arrays [N].

    ``moved``, ``lines``: bytes that cross into the level, and cache lines; ``tile``: bytes of the
    access that the level holds; ``held``: of all accesses; ``inside``: iterations of its loops;
    ``whole``: bytes that the whole program touches.
    """

    moved: Floats
    lines: Floats
    tile: Floats
    held: Floats
    inside: Floats
    whole: Floats


def cpu_rows(analyses: list[StoreAnalysis], num: int, rows: int) -> NDArray[np.float32]:
    """Return rows of N programs, float32 [N, rows, dataflow columns].

    Zero for a program without accesses.
    """
    out = np.zeros((num, rows, len(DATAFLOW_INDEX)), np.float32)
    if not analyses:
        return out
    chosen = busiest([work_of(analysis) for analysis in analyses])
    for number in np.unique(chosen):
        here = chosen == number
        out[here] = statement_rows(analyses[number], rows)[here]
    return out


def batched_cpu_rows(stores: BatchedStores, rows: int) -> list[NDArray[np.float32]]:
    """Return the rows of :func:`cpu_rows` by nest, sharing equal statements."""
    work = [work_of(group) for group in stores.groups]
    found: dict[int, NDArray[np.float32]] = {}
    out = []
    for one, parts in zip(stores.nests, stores.parts, strict=True):
        table = np.zeros((one.num_programs, rows, len(DATAFLOW_INDEX)), np.float32)
        chosen = busiest([work[part.group][part.programs] for part in parts])
        for number in np.unique(chosen):
            part, here = parts[number], chosen == number
            if part.group not in found:
                found[part.group] = statement_rows(stores.groups[part.group], rows)
            table[here] = found[part.group][part.programs][here]
        out.append(table)
    return out


def work_of(analysis: StoreAnalysis) -> Floats:
    """Return the floating-point operations of a statement [N]."""
    return analysis.float_ops * analysis.frame.iterations


def busiest(work: Sequence[Floats]) -> Ints:
    """Return each program's statement with most ``work``, [N].

    The last statement among equals.
    """
    # argmax gives the first maximum, so the list is reversed to take the last.
    return np.asarray(len(work) - 1 - np.stack(work)[::-1].argmax(0))


def statement_rows(analysis: StoreAnalysis, rows: int) -> NDArray[np.float32]:
    """Return the rows of one statement; operands are chosen per program."""
    num, work = analysis.frame.num, work_of(analysis)
    crossings = _crossings(analysis)
    written, *reads = range(len(analysis.accesses))  # the written buffer is listed first
    out = np.zeros((rows, len(DATAFLOW_INDEX), num))

    def row(access: int, level: int, location: int, ops: Floats | None = None) -> Floats:
        where = _LOCATIONS[location]
        return _row(analysis.accesses[access], crossings[access], level, where, ops)

    out[7] = row(written, REGISTERS, REGISTERS, work)
    out[0] = out[7]
    # The first row is the initialisation: it computes nothing.
    out[0, DATAFLOW_INDEX["float_ops"]] = 0.0
    out[8] = row(written, L1, REGISTERS)
    out[9] = row(written, L2, L2)
    # The two operands with most bytes moved to registers, which may differ between programs.
    loads = np.reshape([crossings[access][REGISTERS].moved for access in reads], (len(reads), num))
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
    return slog(out).transpose(2, 0, 1).astype(np.float32)


def _crossings(analysis: StoreAnalysis) -> list[list[Crossing]]:
    """Return the crossings by access and level."""
    frame = analysis.frame
    boxes = [_boxes(one, frame) for one in analysis.accesses]
    held = np.sum([box for box, _ in boxes], axis=0)  # [L + 1, N]
    levels = len(frame.extents)
    inside = np.ones((levels + 1, frame.num))
    for depth in range(levels - 1, -1, -1):
        inside[depth] = inside[depth + 1] * frame.extents[depth]
    out: list[list[Crossing]] = [[] for _ in boxes]
    for size in BYTES:
        # The outermost depth whose footprint fits: from there inwards no iteration misses.
        fits = held <= size
        fits[-1] = True  # one iteration is what it is
        depth = fits.argmax(0)  # [N]
        # A tile crosses once for the loop directly around, as far as that loop moves it.
        around = np.maximum(depth - 1, 0)
        times = frame.iterations / pick(inside, around)
        for access, (box, lines) in enumerate(boxes):
            out[access].append(
                Crossing(
                    moved=pick(box, around) * times,
                    lines=pick(lines, around) * times,
                    tile=pick(box, depth),
                    held=pick(held, depth),
                    inside=pick(inside, depth),
                    whole=box[0],
                )
            )
    return out


def _boxes(one: AccessFeatures, frame: LoopFrame) -> tuple[Floats, Floats]:
    """Return bytes and cache lines an access touches from every depth.

    The box of the loops from each depth inwards; both [L + 1, N], the last row is one iteration.
    """
    size, shape = one.access.bytes_per_element, one.access.buffer.shape
    levels, num = frame.extents.shape
    # Rows that are touched whole join into longer runs, which share cache lines.
    run, rows = np.ones((levels, num)), np.ones((levels, num))  # neighbours, and how many such runs
    inside = np.ones(num)  # elements of the dimensions further in
    for dimension, size_there in reversed(list(enumerate(shape))):
        extent = column(size_there, num)
        width = np.minimum(one.foot.width(dimension), extent)
        whole = run >= inside  # rows that are touched whole are one run
        run, rows = np.where(whole, run * width, run), np.where(whole, rows, rows * width)
        inside = inside * extent
    elements, lines = np.ones((levels + 1, num)), np.ones((levels + 1, num))
    elements[:levels] = run * rows
    lines[:levels] = np.ceil(run * size / CACHE_LINE_BYTES) * rows
    return elements * size, lines


def _row(
    access: AccessFeatures, crossings: list[Crossing], level: int, where: str, ops: Floats | None
) -> Floats:
    """Return the columns of one crossing before the logarithm, [column, N].

    The columns of GPU rows. ``reuse_ct``: uses of the crossing bytes in the next level inwards.
    """
    here = crossings[level]
    # From registers every touch counts; from a cache, what the next level fetched of it.
    used = access.bytes if level == REGISTERS else crossings[level - 1].moved
    count = used / np.maximum(here.moved, 1.0)
    reused = count > 1.0
    out = ColumnValues(DATAFLOW_INDEX, len(here.moved))
    out["float_ops"] = 0.0 if ops is None else ops
    out[f"location.{where}"] = 1.0
    for kind, name in enumerate(("read", "write", "read_write")):
        out[f"acc_type.{name}"] = access.access.kind == kind
    out["reuse_type.loop"], out["reuse_type.none"] = reused, ~reused
    out["reuse_dis_iter"], out["reuse_dis_bytes"] = here.inside, here.held
    out["reuse_ct"] = np.where(reused, count, 0.0)
    for name, value in (
        ("bytes", here.moved),
        ("unique_bytes", here.whole),
        ("lines", here.lines),
        ("unique_lines", np.ceil(here.whole / CACHE_LINE_BYTES)),
    ):
        out[name] = value
        out[f"{name}_d_reuse_ct"] = np.where(reused, value / np.maximum(count, 1), value * 2)
    out["stride"], out["alloc_size"] = access.stride, here.tile
    return out.array
