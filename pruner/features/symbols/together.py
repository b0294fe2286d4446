"""Statements of one structure, of whatever loop nests, as one statement of all their programs.

Where programs differ in the place of a stage they have different nests, yet most of their
statements have the same loops: hundreds of nests have some dozens of kinds of statements. Symbols
are arithmetic on arrays of programs, which costs by the array, not by the program; and nothing of a
program depends on the others, so the numbers are those of the statements alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from pruner.arrays import Floats
from pruner.features.symbols.statement import (
    IndexTerm,
    NestAccess,
    NestStatement,
    count_choices,
    count_operations,
    variables_of,
)
from pruner.program.index.joined import Joined, Places, term_structure

Table = Float[np.ndarray, "column program"]


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


def _places_of(statement: NestStatement) -> Places:
    return {loop.var: place for place, loop in enumerate(statement.loops)}


def _access_structure(access: NestAccess, places: Places) -> Hashable:
    return (
        access.bytes_per_element,
        access.scope,
        len(access.sizes),
        tuple(sorted(places[var] for var in access.around if var in places)),
        tuple(tuple(term_structure(t.term, places) for t in terms) for terms in access.indices),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """Statements of one structure."""

    members: Sequence[NestStatement]
    joined: Joined

    @staticmethod
    def of(members: Sequence[NestStatement]) -> _Joined:
        """Of at least one statement."""
        loops = [[loop.var for loop in member.loops] for member in members]
        return _Joined(members, Joined.of([member.num for member in members], loops))

    def statement(self) -> NestStatement:
        """The statement of all programs, in the order of the members."""
        first = self.members[0]
        loops = [
            replace(
                same[0],
                var=self.joined.variables[same[0].var],
                extent=np.concatenate([loop.extent for loop in same]),
            )
            for same in zip(*(member.loops for member in self.members), strict=True)
        ]
        return NestStatement(
            buffer=first.buffer,
            num=sum(self.joined.nums),
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
        variables = self.joined.variables
        return NestAccess(
            buffer=first.buffer,
            sizes=_each_joined([access.sizes for access in accesses]),
            indices=[
                [self._index_term(terms) for terms in zip(*dimension, strict=True)]
                for dimension in zip(*(access.indices for access in accesses), strict=True)
            ],
            around=frozenset(new for old, new in variables.items() if old in first.around),
            num=sum(self.joined.nums),
        )

    def _index_term(self, terms: Sequence[IndexTerm]) -> IndexTerm:
        term = self.joined.term([one.term for one in terms])
        scale = np.concatenate([one.scale for one in terms])
        return IndexTerm(term, scale, variables_of(term.index))


def _each_joined(values: Sequence[Sequence[Floats]]) -> list[Floats]:
    return [np.concatenate(some) for some in zip(*values, strict=True)]
