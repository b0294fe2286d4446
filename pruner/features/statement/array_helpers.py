"""Array helpers of the feature groups; arrays are [N] or [L, N]."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pruner.arrays import Floats, IntLike, Ints
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Term, Truth

_WIDE = 256  # from so many programs on, a loop over rows is faster than one call over all
Number = TypeVar("Number", np.float64, np.int64)


def column(value: ArrayLike, num: int) -> Floats:
    """Return ``value`` as float64 [N]; do not change the result."""
    values = np.asanyarray(value, np.float64)
    return values if values.shape == (num,) else np.full(num, values)


def pick(table: NDArray[Number], row: NDArray[np.int64]) -> NDArray[Number]:
    """Return ``table[row[n], n]`` [N], or [S, N] of rows [S, N]."""
    return table[row, np.arange(table.shape[1])]


def slog(x: ArrayLike) -> Floats:
    """Return ``sign(x) log2(|x| + 1)``, the shifted logarithm of feature.cc."""
    x = np.asarray(x, np.float64)
    out = np.asarray(np.abs(x) + 1)
    np.log2(out, out=out)
    out *= np.sign(x)
    return out


def pick_row(
    rows: Sequence[NDArray[Number]] | NDArray[Number], row: NDArray[np.int64]
) -> NDArray[Number]:
    """Return ``rows[row[n]][n]`` [N] of L arrays [N], stacking only the rows taken."""
    first, last = int(row.min()), int(row.max())
    if first == last:
        return rows[first]
    return pick(np.asarray(rows[first : last + 1]), row - first)


def first_row(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the place of the first True along axis -2, else their number."""
    levels, num = mask.shape[-2:]
    if num < _WIDE and levels:
        return np.asarray(np.where(mask.any(-2), mask.argmax(-2), levels))
    out = np.full((*mask.shape[:-2], num), levels)
    for row in range(levels - 1, -1, -1):
        np.copyto(out, row, where=mask[..., row, :])
    return out


def product_where(values: Floats, mask: NDArray[np.bool_]) -> Floats:
    """Return the product of ``values`` [L, N] over a ``mask`` [.., L, N]."""
    num = values.shape[-1]
    if num < _WIDE:
        return np.asarray(np.where(mask, values, 1.0).prod(-2))
    out = np.ones((*mask.shape[:-2], num))
    for row, value in enumerate(values):
        np.multiply(out, value, out=out, where=mask[..., row, :])
    return out


def runs_of(
    widths: Sequence[Floats], sizes: Sequence[Floats], shape: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """Return the neighbouring elements of a box, and the number of such runs."""
    run = rows = np.ones(shape)
    inside: Floats | float = 1.0  # elements of the dimensions further in
    for width, size in zip(reversed(widths), reversed(sizes), strict=True):
        whole = run >= inside  # rows that are touched whole are one run
        run, rows = np.where(whole, run * width, run), np.where(whole, rows, rows * width)
        inside = inside * size
    return run, rows


def fitting_depth(footprints: Floats, size: Floats | float) -> tuple[Ints, Ints]:
    """Return the outermost depth whose footprint fits, and the depth around it."""
    fits = footprints <= size
    fits[-1] = True
    depth = fits.argmax(0)
    return depth, np.maximum(depth - 1, 0)


Levels = list[IntLike]  # a value for each level, outermost first


def each_level(function: Callable[..., Any], *levels: Sequence[Any]) -> list[Any]:
    """Apply ``function`` to each level's values; once for identical values."""
    out: list[Any] = []
    last: tuple[Any, ...] = ()
    for values in zip(*levels, strict=True):
        # By identity, which costs nothing: most loops move only one of the indices.
        same = out and all(map(operator.is_, values, last))
        out.append(out[-1] if same else function(*values))
        last = values
    return out


def level_bounds(index: Affine, depth: dict[LoopVar, int], levels: int) -> tuple[Levels, Levels]:
    """Return the bounds of an index at every level, where only inner loops move.

    Neighbouring levels between which no loop moves the index have the very same objects.
    """
    own: dict[int, list[tuple[IntLike, IntLike]]] = {}
    composites: list[Levels] = []
    for t in index.terms:  # every loop adds its own reach at its own level ...
        if not isinstance(t.index, LoopVar):
            inner = level_bounds(t.index, depth, levels)
            # A divided sum is bounded as a whole: its loops do not contribute one by one.
            composites.append(each_level(partial(_reach, t), *inner))
            continue
        own.setdefault(depth[t.index], []).append(_reach(t, 0, t.index.extent - 1))
    low = high = index.base
    lo: Levels = []
    hi: Levels = []
    for row in range(levels - 1, -1, -1):  # ... and moves together with the loops inside it
        for below, above in own.get(row, ()):
            low, high = low if _is_zero(below) else low + below, high + above
        lo.insert(0, low)
        hi.insert(0, high)
    for ends in composites:
        lo = each_level(lambda a, b: a + b[0], lo, ends)
        hi = each_level(lambda a, b: a + b[1], hi, ends)
    return lo, hi


def _reach(t: Term, lo: IntLike, hi: IntLike) -> tuple[IntLike, IntLike]:
    lo, hi = af.wrap_bounds(t, lo, hi)
    x, y = 0 if _is_zero(lo) else t.coef * lo, t.coef * hi
    if _is_zero(x) and not af.any_nonzero(t.coef < 0):
        return 0, y
    return af.least(x, y), af.most(x, y)


def _is_zero(x: IntLike) -> bool:
    return isinstance(x, int) and x == 0


def mark_moves(
    out: NDArray[np.bool_], index: Affine, depth: dict[LoopVar, int], where: Truth = True
) -> None:
    """Set ``out`` [levels, N] for the loops that an index uses."""
    for t in index.terms:
        active = where & (t.coef != 0)
        if isinstance(t.index, LoopVar):
            out[depth[t.index]] |= active
        else:
            mark_moves(out, t.index, depth, active)
