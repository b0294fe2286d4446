"""Strides: how far consecutive iterations of a loop lie apart in a buffer.

The original finds a loop's coefficient by walking the printed expression and remembering the last
constant factor it saw (``CoefficientExtractor`` in feature.cc). In a simplified sum, whose terms
stand in descending order of coefficient, that memory has a closed form, computed here for N
candidates at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import IntLike
from pruner.program.index.affine import INF, Affine, LoopVar, Term

_MAGIC = 2  # what the original leaves when it saw the variable but no factor afterwards


@dataclass(frozen=True, slots=True)
class Target:
    """The loop whose stride is asked for: per candidate, as a row of ``depth``."""

    depth: dict[LoopVar, int]
    row: NDArray[np.int64]

    def is_var(self, var: LoopVar) -> NDArray[np.bool_]:
        """Where ``var`` is the target."""
        return self.row == self.depth[var]

    def inside(self, index: LoopVar | Affine) -> NDArray[np.bool_]:
        """Where the target appears in ``index``."""
        if isinstance(index, LoopVar):
            return self.is_var(index)
        found = np.zeros(len(self.row), bool)
        for t in index.terms:
            found |= self.inside(t.index) & np.not_equal(t.coef, 0)
        return found


def coefficient(index: Affine, target: Target) -> tuple[NDArray[np.bool_], IntLike]:
    """The original's coefficient of the target in ``index``.

    Returns (where the target appears, coefficient there).
    """
    if any(isinstance(t.index, Affine) for t in index.terms):
        return _Walk(target).run(index)
    present = np.zeros(len(target.row), bool)
    largest: IntLike = 0  # coefficient of the first term that holds the target
    tail = np.zeros(len(target.row), bool)  # a term with coefficient 1 holds it
    smallest: IntLike = INF  # last constant factor among the positive terms
    negative: IntLike = 0
    for t in index.terms:
        has = target.inside(t.index) & np.not_equal(t.coef, 0)
        present |= has
        largest = np.maximum(largest, has * t.coef)
        tail |= has & np.equal(t.coef, 1)
        smallest = np.minimum(smallest, np.where(np.greater(t.coef, 1), t.coef, INF))
        if np.any(np.less(t.coef, -1)):
            negative = np.minimum(negative, np.where(np.less(t.coef, -1), t.coef, 0))
    value = np.where(np.equal(largest, 1), 1, np.where(tail, _MAGIC, smallest))
    only_negative = np.less_equal(largest, 0)
    if bool((only_negative & present).any()):
        value = np.where(only_negative, np.where(np.less(negative, 0), -negative, 1), value)
    return present, value


class _Walk:
    """The original's walk itself, for sums that hold divided sums: its memory is four flags."""

    def __init__(self, target: Target) -> None:
        self._target = target
        num = len(target.row)
        self._seen = np.zeros(num, bool)
        self._factor = np.zeros(num, bool)
        self._sum = np.zeros(num, bool)
        self._stride = np.zeros(num, np.int64)

    def run(self, index: Affine) -> tuple[NDArray[np.bool_], IntLike]:
        self._visit(index, np.ones(len(self._seen), bool))
        return self._seen, np.where(self._factor | self._sum, self._stride, 1)

    def _visit(self, index: Affine, live: NDArray[np.bool_]) -> None:
        ranks = _print_order(index)
        after_positive = np.zeros(len(live), bool)
        for rank in range(len(index.terms)):
            for t, place in zip(index.terms, ranks, strict=True):
                here = np.equal(place, rank) & live & np.not_equal(t.coef, 0)
                if not here.any():
                    continue
                self._term(t, here)
                positive = here & np.greater(t.coef, 0)
                self._add(positive & after_positive)
                after_positive |= positive
        self._add(np.greater(index.base, 0) & after_positive & live)

    def _term(self, t: Term, here: NDArray[np.bool_]) -> None:
        if isinstance(t.index, Affine):
            self._visit(t.index, here)
        else:
            met = here & self._target.is_var(t.index)
            self._seen |= met
            self._stride[met] = _MAGIC
        factor = np.abs(t.coef)
        scaled = here & np.not_equal(factor, 1) & self._seen & ~self._sum
        self._factor |= scaled
        self._stride = np.where(scaled, factor, self._stride)

    def _add(self, here: NDArray[np.bool_]) -> None:
        free = here & self._seen & ~self._factor
        self._sum |= free
        self._stride[free] = 1


def _print_order(index: Affine) -> list[IntLike]:
    """Rank of every term in the printed sum: by coefficient, then lower and upper factor, down."""
    terms = index.terms
    ranks: list[IntLike] = [0] * len(terms)
    for i, t in enumerate(terms):
        for j in range(i):
            u = terms[j]
            first = np.greater(u.coef, t.coef) | (
                np.equal(u.coef, t.coef)
                & (
                    np.greater(u.lower, t.lower)
                    | (np.equal(u.lower, t.lower) & np.greater_equal(u.upper, t.upper))
                )
            )
            ranks[i] = ranks[i] + first
            ranks[j] = ranks[j] + np.logical_not(first)
    return ranks


def touch_stride(
    indices: list[tuple[Affine, ...]], shape: tuple[IntLike, ...], target: Target
) -> IntLike:
    """Stride of the target loop in elements: the least over all touches (``ComputeStride``)."""
    best: IntLike = INF
    for index in indices:
        row: IntLike = 1
        seen = np.zeros(len(target.row), bool)
        for d in range(len(index) - 1, -1, -1):
            found, coef = coefficient(index[d], target)
            fresh = found & ~seen
            best = np.where(fresh, np.minimum(best, np.abs(coef) * row), best)
            seen |= found
            if seen.all():
                break
            row = row * shape[d]
    return best
