"""Statements of one structure, of whatever loop nests, as one statement of all their programs.

Where programs differ in the place of a stage they have different nests, yet most of their
statements have the same loops: hundreds of nests have some dozens of kinds of statements. Symbols
are arithmetic on arrays of programs, which costs by the array, not by the program; and nothing of a
program depends on the others, so the numbers are those of the statements alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pruner.arrays import Floats, IntLike
from pruner.features.symbols.statement import (
    IndexTerm,
    NestAccess,
    NestStatement,
    count_choices,
    count_operations,
    variables_of,
)
from pruner.program.index.affine import Affine, LoopVar, Term

Table = Float[np.ndarray, "column program"]
_Places = Mapping[LoopVar, int]  # of the loops around a statement, outermost first


def tables_of(
    statements: Sequence[NestStatement], table_of: Callable[[NestStatement], Table]
) -> list[Table]:
    """``table_of`` of every statement, computed once for all that have the same structure.

    ``table_of`` may look at loops, accesses and operations, at names and numbers of buffers not.
    """
    kinds: dict[Hashable, list[int]] = {}
    for number, statement in enumerate(statements):
        kinds.setdefault(_structure(statement), []).append(number)
    out: dict[int, Table] = {}
    for numbers in kinds.values():
        members = [statements[number] for number in numbers]
        table = table_of(members[0] if len(members) == 1 else _Joined.of(members).statement())
        ends = np.cumsum([member.num for member in members])[:-1]
        out |= zip(numbers, np.split(table, ends, axis=1), strict=True)
    return [out[number] for number in range(len(statements))]


def _structure(statement: NestStatement) -> Hashable:
    """Equal where statements differ in the numbers of their programs alone.

    One whose indices have variables of no loop around it, or that are two loops', stays alone.
    """
    places, accesses = _places_of(statement), (statement.write, *statement.reads)
    if len(places) < len(statement.loops):
        return id(statement)
    try:
        return (
            tuple((loop.mark, loop.is_reduce, loop.is_own) for loop in statement.loops),
            count_operations(statement.value),
            count_choices(statement.value),
            statement.is_reduction,
            len(statement.tile),
            tuple(_access_structure(access, places) for access in accesses),
        )
    except KeyError:
        return id(statement)


def _places_of(statement: NestStatement) -> _Places:
    return {loop.var: place for place, loop in enumerate(statement.loops)}


def _access_structure(access: NestAccess, places: _Places) -> Hashable:
    return (
        access.bytes_per_element,
        access.scope,
        len(access.sizes),
        tuple(sorted(places[var] for var in access.around if var in places)),
        tuple(tuple(_term_structure(t.term, places) for t in terms) for terms in access.indices),
    )


def _term_structure(term: Term, places: _Places) -> Hashable:
    if isinstance(term.index, LoopVar):
        return places[term.index]
    return tuple(_term_structure(inner, places) for inner in term.index.terms)


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """Statements of one structure; ``variables`` of the loops for all programs, by the first's."""

    members: Sequence[NestStatement]
    num: int
    variables: dict[LoopVar, LoopVar]

    @staticmethod
    def of(members: Sequence[NestStatement]) -> _Joined:
        """Of at least one statement."""
        joined = _Joined(members, sum(member.num for member in members), {})
        for loops in zip(*(member.loops for member in members), strict=True):
            var = loops[0].var
            extent = joined._numbers([loop.var.extent for loop in loops])
            joined.variables[var] = LoopVar(var.name, extent)
        return joined

    def statement(self) -> NestStatement:
        """The statement of all programs, in the order of the members."""
        first = self.members[0]
        loops = [
            replace(
                same[0],
                var=self.variables[same[0].var],
                extent=np.concatenate([loop.extent for loop in same]),
            )
            for same in zip(*(member.loops for member in self.members), strict=True)
        ]
        return NestStatement(
            buffer=first.buffer,
            num=self.num,
            value=first.value,
            loops=loops,
            write=self._access([member.write for member in self.members]),
            reads=[
                self._access(accesses)
                for accesses in zip(*(member.reads for member in self.members), strict=True)
            ],
            tile=_each_joined([member.tile for member in self.members]),
            unroll=np.concatenate([member.unroll for member in self.members]),
            is_reduction=first.is_reduction,
        )

    def _access(self, accesses: Sequence[NestAccess]) -> NestAccess:
        first = accesses[0]
        return NestAccess(
            buffer=first.buffer,
            sizes=_each_joined([access.sizes for access in accesses]),
            indices=[
                [self._index_term(terms) for terms in zip(*dimension, strict=True)]
                for dimension in zip(*(access.indices for access in accesses), strict=True)
            ],
            around=frozenset(new for old, new in self.variables.items() if old in first.around),
            num=self.num,
        )

    def _index_term(self, terms: Sequence[IndexTerm]) -> IndexTerm:
        term = self._term([one.term for one in terms])
        scale = np.concatenate([one.scale for one in terms])
        return IndexTerm(term, scale, variables_of(term.index))

    def _term(self, terms: Sequence[Term]) -> Term:
        index = terms[0].index
        return Term(
            self.variables[index]
            if isinstance(index, LoopVar)
            else self._sum([term.index for term in terms if isinstance(term.index, Affine)]),
            self._numbers([term.lower for term in terms]),
            self._numbers([term.upper for term in terms]),
            self._numbers([term.coef for term in terms]),
            self._numbers([term.limit for term in terms]),
        )

    def _sum(self, sums: Sequence[Affine]) -> Affine:
        return Affine(
            [self._term(terms) for terms in zip(*(one.terms for one in sums), strict=True)],
            self._numbers([one.base for one in sums]),
            self._numbers([one.limit for one in sums]),
        )

    def _numbers(self, values: Sequence[IntLike]) -> IntLike:
        """One number a program; a plain one where all members agree."""
        first = values[0]
        if isinstance(first, int) and all(isinstance(x, int) and x == first for x in values):
            return first
        out, start = np.empty(self.num, np.int64), 0
        for member, value in zip(self.members, values, strict=True):
            out[start : start + member.num] = value
            start += member.num
        return out


def _each_joined(values: Sequence[Sequence[Floats]]) -> list[Floats]:
    return [np.concatenate(some) for some in zip(*values, strict=True)]
