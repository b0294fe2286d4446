"""Index expressions of several batches of programs as those of one batch with all the programs.

Batches can be joined where their expressions have one structure: the same terms of loops in the
same places, whatever the numbers. Nothing of a program depends on the others, so what is computed
of the joined batch is what is computed of each.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike
from pruner.program.index.affine import Affine, LoopVar, Term

Places = Mapping[LoopVar, int]  # of loops, outermost first


def structure_of(value: Affine, places: Places) -> Hashable:
    """Equal where sums differ in numbers alone. Raises `KeyError`: a variable has no place."""
    return tuple(term_structure(t, places) for t in value.terms)


def term_structure(term: Term, places: Places) -> Hashable:
    """As :func:`structure_of`."""
    if isinstance(term.index, LoopVar):
        return places[term.index]
    return structure_of(term.index, places)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """``nums`` programs of each batch; ``variables`` of all programs, by the first batch's."""

    nums: Sequence[int]
    variables: dict[LoopVar, LoopVar]

    @staticmethod
    def of(nums: Sequence[int], loops: Sequence[Sequence[LoopVar]]) -> Joined:
        """``loops``: the variables of each batch, those with one place being one variable."""
        joined = Joined(nums, {})
        for same in zip(*loops, strict=True):
            extent = joined.numbers([var.extent for var in same])
            joined.variables[same[0]] = LoopVar(same[0].name, extent)
        return joined

    def numbers(self, values: Sequence[IntLike]) -> IntLike:
        """One number a program; a plain one where all batches agree."""
        first = values[0]
        if isinstance(first, int) and all(isinstance(x, int) and x == first for x in values):
            return first
        out, start = np.empty(sum(self.nums), np.int64), 0
        for num, value in zip(self.nums, values, strict=True):
            out[start : start + num] = value
            start += num
        return out

    def term(self, terms: Sequence[Term]) -> Term:
        """Of one term of each batch, all of one structure."""
        index = terms[0].index
        return Term(
            self.variables[index]
            if isinstance(index, LoopVar)
            else self.sum([term.index for term in terms if isinstance(term.index, Affine)]),
            self.numbers([term.lower for term in terms]),
            self.numbers([term.upper for term in terms]),
            self.numbers([term.coef for term in terms]),
            self.numbers([term.limit for term in terms]),
        )

    def sum(self, sums: Sequence[Affine]) -> Affine:
        """Of one sum of each batch, all of one structure."""
        return Affine(
            [self.term(terms) for terms in zip(*(one.terms for one in sums), strict=True)],
            self.numbers([one.base for one in sums]),
            self.numbers([one.limit for one in sums]),
        )
