"""Features of a buffer access, group 2 of feature.cc: bytes, cache lines, reuse, stride."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, IntLike
from pruner.features.columns import ACCESS_COLUMNS, ACCESS_INDEX, DATAFLOW_INDEX, ColumnValues
from pruner.features.statement.array_helpers import (
    column,
    each_level,
    first_row,
    level_bounds,
    mark_moves,
    pick_row,
    slog,
)
from pruner.features.statement.touches import Access, Reuse, Seen, compute_reuse
from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine, LoopVar, Term, Truth
from pruner.program.nests import Loop, Mark

CACHE_LINE_BYTES = 64
_MAX_STRIDE = float(1 << 60)
Width = Floats | float  # one a program, or of all programs alike


@dataclass(slots=True, eq=False)
class LoopFrame:
    """The loops around one store as arrays, outermost first."""

    loops: tuple[Loop, ...]
    extents: Floats  # [L, N]
    present: NDArray[np.bool_]  # [L, N]
    iterations: Floats  # [N] product of all extents
    depth: dict[LoopVar, int]
    marks: dict[Mark | None, list[int]]  # loops by their mark

    @property
    def num(self) -> int:
        """Number of programs."""
        return len(self.iterations)

    def marked(self, mark: Mark) -> list[int]:
        """Return the places of the loops with a mark."""
        return self.marks.get(mark, [])


def make_frame(loops: tuple[Loop, ...], num: int) -> LoopFrame:
    """Return arrays of the loops that at least one program has."""
    found = [(loop, there) for loop in loops if af.any_nonzero(there := loop.present)]
    extents = np.empty((len(found), num))
    present = np.empty((len(found), num), bool)
    depth: dict[LoopVar, int] = {}
    marks: dict[Mark | None, list[int]] = {}
    for row, (loop, there) in enumerate(found):
        extents[row], present[row] = loop.extent, there
        depth[loop.var] = row
        marks.setdefault(loop.mark, []).append(row)
    kept = tuple(loop for loop, _ in found)
    return LoopFrame(kept, extents, present, extents.prod(0), depth, marks)


@dataclass(slots=True, eq=False)
class Footprint:
    """The region an access touches in the loops from each depth inwards.

    ``elements`` [L, N], and of them along each dimension (``widths``, by level as in
    :func:`level_bounds`); ``moves``: the loops that move the access, [L, N].
    """

    access: Access
    elements: Floats
    widths: list[list[Width]]
    moves: NDArray[np.bool_]

    def width(self, dimension: int) -> Floats:
        """Return the elements along a dimension [L, N]."""
        out = np.empty_like(self.elements)
        for row, value in enumerate(self.widths[dimension]):
            out[row] = value
        return out


def footprint(access: Access, frame: LoopFrame) -> Footprint:
    """Measure the touched region per loop: the box of the index's intervals."""
    levels, num = frame.extents.shape
    widths: list[list[Width]] = []
    for d in range(len(access.indices[0])):
        lo, hi = level_bounds(access.indices[0][d], frame.depth, levels)
        # Several touches of one buffer (a stencil) count as the box around all of them.
        for touch in access.indices[1:]:
            lo2, hi2 = level_bounds(touch[d], frame.depth, levels)
            lo, hi = each_level(af.least, lo, lo2), each_level(af.most, hi, hi2)
        widths.append(each_level(_width, lo, hi))
    elements = np.ones((levels, num))
    for row, product in enumerate(each_level(_product, *widths)):
        elements[row] = product
    moves = np.zeros((levels, num), bool)
    for touch in access.indices:
        for index in touch:
            mark_moves(moves, index, frame.depth)
    return Footprint(access, elements, widths, moves)


def _width(lo: IntLike, hi: IntLike) -> Width:
    width = hi - lo + 1
    return width.astype(np.float64) if isinstance(width, np.ndarray) else float(width)


def _product(first: Width, *others: Width) -> Width:
    return reduce(operator.mul, others, first)


@dataclass(slots=True, eq=False)
class AccessFeatures:
    """Values of one access to the region ``foot`` before the logarithm, each [N]."""

    foot: Footprint
    bytes: Floats
    unique_bytes: Floats
    lines: Floats
    unique_lines: Floats
    reuse: Reuse
    stride: Floats
    _columns: Floats | None = None

    @property
    def access(self) -> Access:
        """The buffer and its touches."""
        return self.foot.access

    def log_columns(self, *, kept: bool = False) -> Floats:
        """Return slog of the access's columns, [column, N], cached: do not change it."""
        if self._columns is None:
            self._columns = self._made_columns()
        if not kept or self.reuse.kept_bytes is self.reuse.distance_bytes:
            return self._columns
        out = self._columns.copy()
        out[ACCESS_INDEX["reuse_dis_bytes"]] = slog(self.reuse.kept_bytes)
        return out

    def flow_columns(
        self, location: str, ops: Floats | float, size: Floats | float, *, kept: bool = False
    ) -> Floats:
        """Return slog of the dataflow columns of ``ops`` and an allocation of ``size`` bytes."""
        out = ColumnValues(DATAFLOW_INDEX, len(self.bytes))
        out["float_ops"], out["alloc_size"] = slog(ops), slog(size)
        out[f"location.{location}"] = 1.0
        out.set_block(ACCESS_COLUMNS[0].name, self.log_columns(kept=kept))
        return out.array

    def _made_columns(self) -> Floats:
        reuse = self.reuse
        reused, count = reuse.count > 0.5, np.maximum(reuse.count, 0.5)
        out = ColumnValues(ACCESS_INDEX, len(self.bytes))
        for kind, name in enumerate(("read", "write", "read_write")):
            out[f"acc_type.{name}"] = self.access.kind == kind
        for kind, name in enumerate(("loop", "serial", "none")):
            out[f"reuse_type.{name}"] = reuse.kind == kind
        out["reuse_dis_iter"] = reuse.distance_iters
        out["reuse_dis_bytes"] = reuse.distance_bytes
        out["reuse_ct"] = reuse.count
        for name, value in (
            ("bytes", self.bytes),
            ("unique_bytes", self.unique_bytes),
            ("lines", self.lines),
            ("unique_lines", self.unique_lines),
        ):
            out[name] = value
            # Per reuse; doubled where there is no reuse.
            out[f"{name}_d_reuse_ct"] = np.where(reused, value / count, value * 2)
        out["stride"] = self.stride
        return slog(out.array)


def _lines_and_strides(
    accesses: Sequence[Access], moves: NDArray[np.bool_], frame: LoopFrame
) -> tuple[Floats, Floats]:
    """Return cache lines touched and the innermost loop's stride, [A, N]."""
    levels, num = frame.extents.shape
    if levels == 0:
        return np.ones((len(accesses), num)), np.zeros((len(accesses), num))
    present = frame.present[::-1]
    nearest = first_row(moves[:, ::-1] & present)  # innermost loop that moves it, from inside
    some = nearest < levels
    rows = np.where(some, levels - 1 - nearest, -1)
    nearest = np.where(some, nearest, 0)
    stride = np.empty((len(accesses), num))
    for place, access in enumerate(accesses):
        holds = partial(_holds, depth=frame.depth, row=af.plain(rows[place]))
        stride[place] = touch_stride(access.indices, access.buffer.shape, holds)
    stride = np.where(some, np.minimum(stride, _MAX_STRIDE), 0.0)
    innermost = first_row(present)
    innermost = np.where(innermost < levels, innermost, 0)
    inner_extent = pick_row(frame.extents[::-1], innermost)
    # The original multiplies the innermost extent once for every skipped loop.
    # Loops inside each; a sum of rows at a time is much faster than np.cumsum along them.
    inside = [*accumulate(present[:-1], np.add, initial=np.zeros(num, np.int64))]
    skipped = np.array([pick_row(inside, one) for one in nearest])
    ratio = np.ones(skipped.shape)
    if skipped.any():
        ratio = np.where(skipped > 0, inner_extent, 1.0) ** skipped
    sizes = np.array([[access.buffer.bytes_per_element] for access in accesses])
    # A stride below a line shares it between iterations; above, every iteration takes a new line.
    share = np.minimum(1.0, stride * sizes / CACHE_LINE_BYTES)
    lines = np.maximum(frame.iterations / ratio * share, 1.0)
    # The stride column is that of the innermost loop: 0 where another loop moves the access.
    return lines, np.where(innermost == nearest, stride, 0.0)


def _contiguous(access: Access, last_region: list[Width], num: int) -> Floats:
    """Return bytes of innermost dimensions that ``last_region`` covers whole, [N]."""
    out = np.full(num, float(access.buffer.bytes_per_element))
    open_ = np.ones(num, bool)
    shape = access.buffer.shape
    for d in range(min(len(last_region), len(shape)) - 1, -1, -1):
        match = open_ & (last_region[d] == column(shape[d], num))
        # feature.cc breaks at the first matching dimension from inside: at most one counts.
        out = np.where(match, out * last_region[d], out)
        open_ &= ~match
    return out


def access_features(
    feet: Sequence[Footprint], frame: LoopFrame, seen: Seen
) -> list[AccessFeatures]:
    """Return all values of every access of a store, in order."""
    num, levels = frame.num, len(frame.extents)
    moves = np.array([foot.moves for foot in feet])
    accesses = [foot.access for foot in feet]
    lines, strides = _lines_and_strides(accesses, moves, frame)
    reuses = compute_reuse(seen, moves, frame.present, frame.extents)
    outermost = first_row(frame.present)
    some = outermost < levels
    outermost = np.where(some, outermost, 0)
    # The original reads the last-visited buffer's region for all of them; small libstdc++ hash
    # maps are visited in reverse order of insertion, so that is the written buffer.
    last_region = [width[0] if levels else 1.0 for width in feet[0].widths]
    out = []
    for place, access in enumerate(accesses):
        size = access.buffer.bytes_per_element
        unique = np.full(num, float(size))
        if levels:
            # The region of the outermost loop, from the first touch recorded there.
            whole = pick_row(seen.first[place], outermost) * size
            unique = np.where(some, whole, unique)
        run = np.minimum(_contiguous(access, last_region, num), CACHE_LINE_BYTES)
        out.append(
            AccessFeatures(
                feet[place],
                frame.iterations * size,
                unique,
                lines[place],
                np.maximum(unique / run, 1.0),
                reuses[place],
                strides[place],
            )
        )
    return out


# The stride of a loop's consecutive iterations in a buffer: feature.cc remembers the last constant
# factor of the printed expression (`CoefficientExtractor`); for a simplified sum, in descending
# order of coefficients, that has a closed form.
_MAGIC = 2  # feature.cc's value where no factor follows the variable


_Holds = Callable[[LoopVar | Affine], Truth]  # where the loop whose stride is computed is inside


def _holds(index: LoopVar | Affine, depth: dict[LoopVar, int], row: IntLike) -> Truth:
    """Return where the loop at depth ``row`` of each program is in an index."""
    if isinstance(index, LoopVar):
        return row == depth[index]
    found: Truth = False
    for t in index.terms:
        found = found | (_holds(t.index, depth, row) & (t.coef != 0))
    return found


def coefficient(index: Affine, holds: _Holds) -> tuple[Truth, IntLike]:
    """Return where ``index`` holds the loop, and feature.cc's coefficient there."""
    # Sums of plain variables have the closed form below; nested sums need the walk itself.
    if any(isinstance(t.index, Affine) for t in index.terms):
        return _Walk(holds).run(index) if af.any_nonzero(holds(index)) else (False, 1)
    present: Truth = False
    largest: IntLike = 0  # coefficient of the first term that holds the loop
    tail: Truth = False  # a term with coefficient 1 holds it
    for t in index.terms:
        has = holds(t.index) & (t.coef != 0)
        if af.any_nonzero(has):
            present = present | has
            largest = af.most(largest, af.where(has, t.coef, 0))
            # No "* factor" is printed for coefficient 1: an earlier factor is remembered, or none.
            tail = tail | (has & (t.coef == 1))
    if not af.any_nonzero(present):
        return False, 1
    smallest: IntLike = INF  # last constant factor among the positive terms
    negative: IntLike = 0
    for t in index.terms:
        smallest = af.least(smallest, af.where(t.coef > 1, t.coef, INF))
        if af.any_nonzero(t.coef < -1):
            negative = af.least(negative, af.where(t.coef < -1, t.coef, 0))
    value = af.where(largest == 1, 1, af.where(tail, _MAGIC, smallest))
    only_negative = largest <= 0
    if af.any_nonzero(only_negative & present):
        value = af.where(only_negative, af.where(negative < 0, -negative, 1), value)
    return present, value


class _Walk:
    """Walk nested sums as ``CoefficientExtractor`` does, with four flags."""

    def __init__(self, holds: _Holds) -> None:
        self._holds = holds
        self._seen: Truth = False
        self._factor: Truth = False
        self._sum: Truth = False
        self._stride: IntLike = 0

    def run(self, index: Affine) -> tuple[Truth, IntLike]:
        """Return where the loop appears, and the coefficient there."""
        self._visit(index, True)
        return self._seen, af.where(self._factor | self._sum, self._stride, 1)

    def _visit(self, index: Affine, live: Truth) -> None:
        ranks = _print_order(index)
        active = [live & (t.coef != 0) for t in index.terms]
        after_positive: Truth = False
        for rank in range(len(index.terms)):
            for t, place, there in zip(index.terms, ranks, active, strict=True):
                here = (place == rank) & there
                if not af.any_nonzero(here):
                    continue
                self._term(t, here)
                positive = here & (t.coef > 0)
                self._add(positive & after_positive)
                after_positive = after_positive | positive
        self._add((index.base > 0) & after_positive & live)

    def _term(self, t: Term, here: Truth) -> None:
        if isinstance(t.index, Affine):
            self._visit(t.index, here)
        else:
            met = here & self._holds(t.index)
            self._seen = self._seen | met
            self._stride = af.where(met, _MAGIC, self._stride)
        factor = af.most(t.coef, -t.coef)
        scaled = here & (factor != 1) & self._seen & af.fails(self._sum)
        self._factor = self._factor | scaled
        self._stride = af.where(scaled, factor, self._stride)

    def _add(self, here: Truth) -> None:
        free = here & self._seen & af.fails(self._factor)
        self._sum = self._sum | free
        self._stride = af.where(free, 1, self._stride)


def _print_order(index: Affine) -> list[IntLike]:
    """Return terms' ranks in the printed sum: by coefficient, lower, upper, descending."""
    terms = index.terms
    ranks: list[IntLike] = [0] * len(terms)
    for i, t in enumerate(terms):
        for j in range(i):
            u = terms[j]
            first, same = u.coef > t.coef, u.coef == t.coef
            if af.any_nonzero(same):
                tied = (u.lower == t.lower) & (u.upper >= t.upper)
                # canonical_simplify.cc sorts equal coefficients by lower, then by upper factor.
                first = first | (same & ((u.lower > t.lower) | tied))
            ranks[i] = ranks[i] + af.where(first, 1, 0)
            ranks[j] = ranks[j] + af.where(first, 0, 1)
    return [af.plain(rank) for rank in ranks]


def touch_stride(
    indices: list[tuple[Affine, ...]], shape: tuple[IntLike, ...], holds: _Holds
) -> IntLike:
    """Return the loop's least stride over touches, in elements (``ComputeStride``)."""
    best: IntLike = INF
    for index in indices:
        row: IntLike = 1
        # From the last dimension outwards: the first dimension that the loop moves decides.
        seen: Truth = False
        for d in range(len(index) - 1, -1, -1):
            found, coef = coefficient(index[d], holds)
            fresh = found & af.fails(seen)
            if af.any_nonzero(fresh):
                # Several touches of a buffer: feature.cc keeps the smallest stride.
                best = af.where(fresh, af.least(best, af.most(coef, -coef) * row), best)
                seen = seen | found
            if af.everywhere(seen):
                break
            row = row * shape[d]
    return best
