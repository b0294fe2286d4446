"""Compute the stride of a loop's consecutive iterations in a buffer.

feature.cc remembers the last constant factor of the printed expression (``CoefficientExtractor``);
for a simplified sum, in descending order of coefficients, that has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

from pruner.arrays import IntLike
from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine, LoopVar, Term, Truth

_MAGIC = 2  # feature.cc's value where no factor follows the variable


@dataclass(frozen=True, slots=True)
class Target:
    """The loop whose stride is computed: per program, a ``depth`` row."""

    depth: dict[LoopVar, int]
    row: IntLike

    def is_var(self, var: LoopVar) -> Truth:
        """Return where ``var`` is the target."""
        return self.row == self.depth[var]

    def inside(self, index: LoopVar | Affine) -> Truth:
        """Return where the target appears in ``index``."""
        if isinstance(index, LoopVar):
            return self.is_var(index)
        found: Truth = False
        for t in index.terms:
            found = found | (self.inside(t.index) & (t.coef != 0))
        return found


def coefficient(index: Affine, target: Target) -> tuple[Truth, IntLike]:
    """Return where the target appears in ``index``, and feature.cc's coefficient there."""
    # Sums of plain variables have the closed form below; nested sums need the walk itself.
    if any(isinstance(t.index, Affine) for t in index.terms):
        return _Walk(target).run(index) if af.any_nonzero(target.inside(index)) else (False, 1)
    present: Truth = False
    largest: IntLike = 0  # coefficient of the first term that holds the target
    tail: Truth = False  # a term with coefficient 1 holds it
    for t in index.terms:
        has = target.inside(t.index) & (t.coef != 0)
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

    def __init__(self, target: Target) -> None:
        self._target = target
        self._seen: Truth = False
        self._factor: Truth = False
        self._sum: Truth = False
        self._stride: IntLike = 0

    def run(self, index: Affine) -> tuple[Truth, IntLike]:
        """Return where the target appears, and the coefficient there."""
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
            met = here & self._target.is_var(t.index)
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
    indices: list[tuple[Affine, ...]], shape: tuple[IntLike, ...], target: Target
) -> IntLike:
    """Return the target loop's least stride over touches, in elements (``ComputeStride``)."""
    best: IntLike = INF
    for index in indices:
        row: IntLike = 1
        # From the last dimension outwards: the first dimension that the loop moves decides.
        seen: Truth = False
        for d in range(len(index) - 1, -1, -1):
            found, coef = coefficient(index[d], target)
            fresh = found & af.fails(seen)
            if af.any_nonzero(fresh):
                # Several touches of a buffer: feature.cc keeps the smallest stride.
                best = af.where(fresh, af.least(best, af.most(coef, -coef) * row), best)
                seen = seen | found
            if af.everywhere(seen):
                break
            row = row * shape[d]
    return best
