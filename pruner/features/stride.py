"""Strides: how far consecutive iterations of a loop lie apart in a buffer.

The original finds a loop's coefficient by walking the printed expression and remembering the last
constant factor it saw (``CoefficientExtractor`` in feature.cc). In a simplified sum, whose terms
stand in descending order of coefficient, that memory has a closed form, computed here for N
candidates at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.program.affine import INF, Affine, IntLike, LoopVar, Term

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
    if any(isinstance(t.index, Affine) for t in index.terms):
        return _Walk(var).run(index)
    present: IntLike = 0
    largest: IntLike = 0  # coefficient of the first term that holds the variable
    tail: IntLike = 0  # a term with coefficient 1 holds the variable
    smallest: IntLike = INF  # last constant factor among the positive terms
    negative: IntLike = 0
    for t in index.terms:
        active = np.not_equal(t.coef, 0)
        has = uses(t.index, var) * active
        present = np.maximum(present, has)
        largest = np.maximum(largest, has * t.coef)
        tail = np.maximum(tail, has * np.equal(t.coef, 1))
        factor = np.greater(t.coef, 1)
        smallest = np.where(factor, np.minimum(smallest, t.coef), smallest)
        negative = np.minimum(negative, np.where(np.less(t.coef, -1), t.coef, 0))
    value = np.where(np.equal(largest, 1), 1, np.where(tail, _MAGIC, smallest))
    only_negative = np.less_equal(largest, 0)
    value = np.where(only_negative, np.where(np.less(negative, 0), -negative, 1), value)
    return present, np.where(present, value, 0)


class _Walk:
    """The original's walk itself, for sums that hold divided sums: its memory is four flags."""

    def __init__(self, var: LoopVar) -> None:
        self._var = var
        self._seen: IntLike = 0
        self._factor: IntLike = 0
        self._sum: IntLike = 0
        self._stride: IntLike = 0

    def run(self, index: Affine) -> tuple[IntLike, IntLike]:
        self._visit(index, 1)
        alone = np.equal(self._factor + self._sum, 0)
        return self._seen, np.where(self._seen, np.where(alone, 1, self._stride), 0)

    def _visit(self, index: Affine, live: IntLike) -> None:
        ranks = _print_order(index)
        last_positive: IntLike = 0
        for rank in range(len(index.terms)):
            for t, place in zip(index.terms, ranks, strict=True):
                here = np.equal(place, rank) * np.not_equal(t.coef, 0) * live
                if not np.any(here):
                    continue
                self._term(t, here)
                positive = here * np.greater(t.coef, 0)
                self._add(positive * last_positive)
                last_positive = np.maximum(last_positive, positive)
        self._add(np.greater(index.base, 0) * last_positive * live)

    def _term(self, t: Term, here: IntLike) -> None:
        if isinstance(t.index, Affine):
            self._visit(t.index, here)
        elif t.index is self._var:
            self._seen = np.maximum(self._seen, here)
            self._stride = np.where(here, _MAGIC, self._stride)
        scaled = here * np.not_equal(np.abs(t.coef), 1) * self._seen * (1 - self._sum)
        self._factor = np.maximum(self._factor, scaled)
        self._stride = np.where(scaled, np.abs(t.coef), self._stride)

    def _add(self, here: IntLike) -> None:
        free = here * self._seen * (1 - self._factor)
        self._sum = np.maximum(self._sum, free)
        self._stride = np.where(free, 1, self._stride)


def _print_order(index: Affine) -> list[IntLike]:
    """Rank of every term in the printed sum: by coefficient, then lower and upper factor, down."""
    terms = index.terms
    ranks: list[IntLike] = []
    for i, t in enumerate(terms):
        rank: IntLike = 0
        for j, u in enumerate(terms):
            if i == j:
                continue
            before = np.greater(u.coef, t.coef)
            tie = np.equal(u.coef, t.coef)
            before = before | (tie & np.greater(u.lower, t.lower))
            tie = tie & np.equal(u.lower, t.lower)
            before = before | (tie & np.greater(u.upper, t.upper))
            tie = tie & np.equal(u.upper, t.upper)
            rank = rank + (before | (tie & (j < i)))
        ranks.append(rank)
    return ranks


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
