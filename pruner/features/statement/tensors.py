"""Small array helpers shared by the feature groups: everything is [N] or [L, N]."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pruner.arrays import Floats
from pruner.program.index.affine import Affine, LoopVar, Term, any_nonzero, wrap_bounds

Number = TypeVar("Number", np.float64, np.int64)


def column(value: ArrayLike, num: int) -> Floats:
    """``value`` as float64 [N], not to change."""
    values = np.asarray(value, np.float64)
    return values if values.shape == (num,) else np.full(num, values)


def pick(table: NDArray[Number], row: NDArray[np.int64]) -> NDArray[Number]:
    """``table[row[n], n]`` [N], or [S, N] of rows [S, N]."""
    return table[row, np.arange(table.shape[1])]


def slog(x: ArrayLike) -> Floats:
    """Shifted logarithm ``sign(x) log2(|x| + 1)`` (feature.cc)."""
    x = np.asarray(x, np.float64)
    return np.sign(x) * np.log2(np.abs(x) + 1)


def level_bounds(
    index: Affine, depth: dict[LoopVar, int], levels: int, num: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Interval of an index when only loops at depth >= level move, for every level.

    Returns ``lo`` and ``hi``, int64 [levels, N]; loops that do not move stand at 0.
    """
    lo = np.zeros((levels, num), np.int64)
    hi = np.zeros((levels, num), np.int64)
    signed = False
    composites: list[tuple[Term, Affine]] = []
    for t in index.terms:  # every loop adds its own reach at its own row ...
        if not isinstance(t.index, LoopVar):
            composites.append((t, t.index))
            continue
        row = depth[t.index]
        _, last = wrap_bounds(t, 0, t.index.extent - 1)
        reach = t.coef * last
        if bool(np.any(np.less(t.coef, 0))):
            signed = True
            lo[row] += np.minimum(reach, 0)
            hi[row] += np.maximum(reach, 0)
        else:
            hi[row] += reach
    for row in range(levels - 2, -1, -1):  # ... and moves together with the loops inside it
        hi[row] += hi[row + 1]
        if signed:
            lo[row] += lo[row + 1]
    for t, inner in composites:
        a, b = wrap_bounds(t, *level_bounds(inner, depth, levels, num))
        x, y = t.coef * a, t.coef * b
        lo += np.minimum(x, y)
        hi += np.maximum(x, y)
    if any_nonzero(index.base):
        lo += index.base
        hi += index.base
    return lo, hi


def mentions(
    index: Affine, num_levels: int, depth: dict[LoopVar, int], num: int
) -> NDArray[np.bool_]:
    """Which loops an index uses, bool [levels, N]."""
    out = np.zeros((num_levels, num), bool)
    for t in index.terms:
        active = np.not_equal(t.coef, 0)
        if isinstance(t.index, LoopVar):
            out[depth[t.index]] |= active
        else:
            out |= mentions(t.index, num_levels, depth, num) & active
    return out
