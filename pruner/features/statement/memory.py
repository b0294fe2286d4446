"""Features of one buffer access (group 2 of feature.cc): bytes, cache lines, reuse, stride."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.column import ColumnValues
from pruner.features.columns import ACCESS_PLACES
from pruner.features.statement.accesses import Access
from pruner.features.statement.reuse import Reuse, compute_reuse
from pruner.features.statement.stride import Target, touch_stride
from pruner.features.statement.tensors import column, level_bounds, mentions, pick, slog
from pruner.features.statement.touches import LoopNumber, TouchTable
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Loop

CACHE_LINE_BYTES = 64
_MAX_STRIDE = float(1 << 60)


@dataclass(slots=True, eq=False)
class LoopFrame:
    """The loops around one store as arrays, outermost first."""

    loops: tuple[Loop, ...]
    rows: NDArray[np.int64]  # [L] rows of the loops in the touch table
    extents: Floats  # [L, N]
    present: NDArray[np.bool_]  # [L, N]
    iterations: Floats  # [N] product of all extents
    depth: dict[LoopVar, int]

    @property
    def num(self) -> int:
        """Number of programs."""
        return len(self.iterations)


def make_frame(loops: tuple[Loop, ...], numbers: Mapping[Loop, LoopNumber], num: int) -> LoopFrame:
    """Arrays of the loops around a store that at least one program has."""
    loops = tuple(loop for loop in loops if np.any(loop.present))
    extents = np.empty((len(loops), num))
    present = np.empty((len(loops), num), bool)
    for row, loop in enumerate(loops):
        extents[row] = loop.extent
        present[row] = loop.present
    rows = np.array([numbers[loop].row for loop in loops], np.int64)
    depth = {loop.var: row for row, loop in enumerate(loops)}
    return LoopFrame(loops, rows, extents, present, extents.prod(0), depth)


@dataclass(slots=True, eq=False)
class Footprint:
    """What an access touches: per-loop elements [L, N], region per dimension at the outermost loop
    (list of [N]) and which loops move it, bool [L, N]."""

    elements: Floats
    region: list[Floats]
    moves: NDArray[np.bool_]


def footprint(access: Access, frame: LoopFrame) -> Footprint:
    """Touched region per loop: product over dimensions of the index interval's width."""
    levels, num = frame.extents.shape
    elements = np.ones((levels, num))
    region: list[Floats] = []
    for d in range(len(access.indices[0])):
        lo, hi = level_bounds(access.indices[0][d], frame.depth, levels, num)
        for touch in access.indices[1:]:
            lo2, hi2 = level_bounds(touch[d], frame.depth, levels, num)
            lo, hi = np.minimum(lo, lo2), np.maximum(hi, hi2)
        width = (hi - lo + 1).astype(np.float64)
        elements *= width
        region.append(width[0] if levels else np.ones(num))
    moves = np.zeros((levels, num), bool)
    for touch in access.indices:
        for index in touch:
            moves |= mentions(index, levels, frame.depth, num)
    return Footprint(elements, region, moves)


@dataclass(slots=True, eq=False)
class AccessFeatures:
    """Values of one access before the logarithm, each [N]; ``moves`` as in Footprint."""

    access: Access
    moves: NDArray[np.bool_]
    bytes: Floats
    unique_bytes: Floats
    lines: Floats
    unique_lines: Floats
    reuse: Reuse
    stride: Floats

    def per_reuse(self, value: Floats) -> Floats:
        """``value`` divided by the reuse count; doubled where there is no reuse."""
        count = self.reuse.count
        return np.where(count > 0.5, value / np.maximum(count, 0.5), value * 2)

    def log_columns(self, *, kept: bool = False) -> Floats:
        """The columns of an access as [column, N]: slog of all, which leaves 0 and 1 what they are.

        ``kept``: see :class:`Reuse`.
        """
        reuse = self.reuse
        out = ColumnValues(ACCESS_PLACES, len(self.bytes))
        for kind, name in enumerate(("read", "write", "read_write")):
            out[f"acc_type.{name}"] = self.access.kind == kind
        for kind, name in enumerate(("loop", "serial", "none")):
            out[f"reuse_type.{name}"] = reuse.kind == kind
        out["reuse_dis_iter"] = reuse.distance_iters
        out["reuse_dis_bytes"] = reuse.kept_bytes if kept else reuse.distance_bytes
        out["reuse_ct"] = reuse.count
        for name, value in (
            ("bytes", self.bytes),
            ("unique_bytes", self.unique_bytes),
            ("lines", self.lines),
            ("unique_lines", self.unique_lines),
        ):
            out[name] = value
            out[f"{name}_d_reuse_ct"] = self.per_reuse(value)
        out["stride"] = self.stride
        return slog(out.array)


def _lines_and_stride(access: Access, foot: Footprint, frame: LoopFrame) -> tuple[Floats, Floats]:
    """Cache lines touched, and the stride of the innermost loop."""
    levels, num = frame.extents.shape
    if levels == 0:
        return np.ones(num), np.zeros(num)
    present = frame.present[::-1]
    moving = foot.moves[::-1] & present
    nearest = moving.argmax(0)  # innermost loop that moves the access, counted from inside
    some = moving.any(0)
    target = Target(frame.depth, np.where(some, levels - 1 - nearest, -1))
    stride = touch_stride(access.indices, access.buffer.shape, target)
    stride = np.where(some, np.minimum(stride, _MAX_STRIDE), 0.0)
    innermost = present.argmax(0)
    skipped = (present & (np.arange(levels)[:, None] < nearest)).sum(0)
    inner_extent = pick(frame.extents[::-1], innermost)
    # The original multiplies the innermost extent once for every skipped loop.
    ratio = np.where(skipped > 0, inner_extent, 1.0) ** skipped
    share = np.minimum(1.0, stride * access.bytes_per_element / CACHE_LINE_BYTES)
    lines = np.maximum(frame.iterations / ratio * share, 1.0)
    return lines, np.where(innermost == nearest, stride, 0.0)


def access_features(
    access: Access,
    foot: Footprint,
    last_region: list[Floats],
    frame: LoopFrame,
    table: TouchTable,
) -> AccessFeatures:
    """All values of one access.

    ``last_region`` is the region of the buffer that the original visited last: its contiguous
    length is used for every buffer of the store (a slip of the original, kept).
    """
    size = access.bytes_per_element
    num = frame.num
    lines, stride = _lines_and_stride(access, foot, frame)
    if len(frame.rows):
        outermost = frame.present.argmax(0)
        first = table.of(access).first[frame.rows]
        unique = pick(first, outermost) * size
        unique = np.where(frame.present.any(0), unique, size)
    else:
        unique = np.full(num, float(size))
    contiguous = np.full(num, float(size))
    open_ = np.ones(num, bool)
    shape = access.buffer.shape
    for d in range(min(len(last_region), len(shape)) - 1, -1, -1):
        match = open_ & (last_region[d] == column(shape[d], num))
        contiguous = np.where(match, contiguous * last_region[d], contiguous)
        open_ &= ~match
    unique_lines = np.maximum(unique / np.minimum(contiguous, CACHE_LINE_BYTES), 1.0)
    reuse = compute_reuse(access, table, frame.rows, foot.moves, frame.present, frame.extents)
    return AccessFeatures(
        access, foot.moves, frame.iterations * size, unique, lines, unique_lines, reuse, stride
    )
