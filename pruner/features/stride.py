"""Strides: how far consecutive iterations of a loop lie apart in a buffer.

The original finds a loop's coefficient by walking the printed expression and remembering the last
constant factor it saw (``CoefficientExtractor`` in feature.cc). In a simplified sum, whose terms
stand in descending order of coefficient, that memory has a closed form, computed here for N
candidates at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.program.affine import INF, Affine, IntLike, LoopVar

_MAGIC = 2  # what the original leaves when it saw the variable but no factor afterwards


def uses(index: LoopVar | Affine, var: LoopVar) -> IntLike:
    """1 where ``var`` appears in ``index``."""
    if isinstance(index, LoopVar):
        return int(index is var)
    found: IntLike = 0
    for t in index.terms:
        inside = uses(t.index, var)
        if isinstance(inside, np.ndarray) or inside:
            found = np.maximum(found, inside * np.not_equal(t.coef, 0))
    return found


def coefficient(index: Affine, var: LoopVar) -> tuple[IntLike, IntLike]:
    """The original's coefficient of ``var`` in ``index``.

    Returns (1 where the variable appears, coefficient there).
    """
    present: IntLike = 0
    largest: IntLike = 0  # coefficient of the first term that holds the variable
    tail: IntLike = 0  # a term with coefficient 1 holds the variable
    smallest: IntLike = INF  # last constant factor among the positive terms
    negative: IntLike = 0
    inner: IntLike = 0
    for t in index.terms:
        active = np.not_equal(t.coef, 0)
        has = uses(t.index, var) * active
        present = np.maximum(present, has)
        largest = np.maximum(largest, has * t.coef)
        tail = np.maximum(tail, has * np.equal(t.coef, 1))
        factor = np.greater(t.coef, 1)
        smallest = np.where(factor, np.minimum(smallest, t.coef), smallest)
        negative = np.minimum(negative, np.where(np.less(t.coef, -1), t.coef, 0))
        if isinstance(t.index, Affine) and np.any(has):
            inner = np.maximum(inner, coefficient(t.index, var)[1] * has * np.equal(t.coef, 1))
    value = np.where(np.equal(largest, 1), 1, np.where(tail, _MAGIC, smallest))
    value = np.where(np.greater(inner, 1), inner, value)
    only_negative = np.less_equal(largest, 0)
    value = np.where(only_negative, np.where(np.less(negative, 0), -negative, 1), value)
    return present, np.where(present, value, 0)


def touch_stride(
    indices: list[tuple[Affine, ...]], shape: tuple[IntLike, ...], var: LoopVar
) -> tuple[NDArray[np.bool_], IntLike]:
    """Stride of ``var`` in elements: the least over all touches (``ComputeStride``)."""
    best: IntLike = INF
    any_found: IntLike = 0
    for index in indices:
        row: IntLike = 1
        seen: IntLike = 0
        for d in range(len(index) - 1, -1, -1):
            found, coef = coefficient(index[d], var)
            fresh = np.logical_and(found, np.equal(seen, 0))
            best = np.where(fresh, np.minimum(best, np.abs(coef) * row), best)
            seen = np.maximum(seen, found)
            row = row * shape[d]
        any_found = np.maximum(any_found, seen)
    return np.asarray(any_found, bool), best
