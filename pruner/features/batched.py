"""Batch statements of the same structure, across loop nests.

Stores with alike values and buffers are joined: of the joined loops each program has some, and one
iteration of the others, which changes no number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from pruner.arrays import IntLike
from pruner.features.statement.touches import Buffers
from pruner.features.symbols.statement import (
    IndexTerm,
    NestAccess,
    NestStatement,
    StatementLoop,
    count_operations,
)
from pruner.program.dag.expr import loads
from pruner.program.index.affine import INF, Affine, LoopVar, Term, variables_of
from pruner.program.nests import BufferStore, Loop, LoopNests, Mark

_WIDE = 512  # programs of a nest that pay for its arrays by themselves
Table = Float[np.ndarray, "column program"]
_LoopLike = Loop | StatementLoop
_Item = TypeVar("_Item")


def grouped(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> list[list[_Item]]:
    """Return the items with equal keys together, in order of first item."""
    groups: dict[Hashable, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _index_structure(index: LoopVar | Affine, places: Mapping[LoopVar, int]) -> Hashable:
    """Return a key of an index without numbers; `KeyError` for a strange variable."""
    if isinstance(index, LoopVar):
        return places[index]
    return tuple(_index_structure(t.index, places) for t in index.terms)


def _aligned(sequences: Sequence[Sequence[Hashable]]) -> tuple[list[list[int]], int]:
    """Return the places of each sequence in one common sequence, and its length."""
    merged: list[tuple[Hashable, int]] = []  # (item, number in order of insertion)
    known: dict[tuple[Hashable, ...], list[int]] = {}
    for sequence in map(tuple, sequences):
        if sequence in known:
            continue
        start, found = 0, []
        for item in sequence:
            at = next((n for n in range(start, len(merged)) if merged[n][0] == item), None)
            if at is None:
                at = start
                merged.insert(at, (item, len(merged)))
            found.append(merged[at][1])
            start = at + 1
        known[sequence] = found
    place = {number: at for at, (_, number) in enumerate(merged)}
    places = {sequence: [place[number] for number in found] for sequence, found in known.items()}
    return [places[tuple(sequence)] for sequence in sequences], len(merged)


class _Joined:
    """Batches joined: ``nums`` programs each, ``variables`` of their loops.

    ``places`` of each batch's loops among the joined loops; a batch has one iteration of a joined
    loop that it lacks, and the coefficient 0 of a term that it lacks.
    """

    def __init__(self, nums: Sequence[int], loops: Sequence[Sequence[_LoopLike]]) -> None:
        self.nums, self.num = nums, sum(nums)
        # From inside: the joined loops that a batch lacks stand outside of its own loops.
        places, levels = _aligned([[loop.mark for loop in reversed(some)] for some in loops])
        self.places = [[levels - 1 - at for at in reversed(some)] for some in places]
        extents: list[list[IntLike]] = [[1] * len(nums) for _ in range(levels)]
        names, self.marks = [""] * levels, list[Mark | None]([None] * levels)
        for batch, (some, own) in enumerate(zip(loops, self.places, strict=True)):
            for loop, at in zip(some, own, strict=True):
                extents[at][batch], names[at] = loop.var.extent, loop.var.name
                self.marks[at] = loop.mark
        self.variables = [
            LoopVar(name, self.numbers(some)) for name, some in zip(names, extents, strict=True)
        ]
        self._place_of = [
            {loop.var: at for loop, at in zip(some, own, strict=True)}
            for some, own in zip(loops, self.places, strict=True)
        ]

    def numbers(self, values: Sequence[IntLike]) -> IntLike:
        """Join one number a program; a plain number where all batches agree."""
        if set(map(type, values)) == {int}:
            same = values.count(values[0]) == len(values)
            return values[0] if same else np.repeat(np.array(values, np.int64), self.nums)
        pairs = zip(values, self.nums, strict=True)
        return np.concatenate([v if np.ndim(v) else np.full(n, v) for v, n in pairs])

    def variable(self, batch: int, var: LoopVar) -> LoopVar:
        return self.variables[self._place_of[batch][var]]

    def term(self, terms: Sequence[Term | None]) -> Term:
        batch, some = next((n, t) for n, t in enumerate(terms) if t is not None)
        return Term(
            self.variable(batch, some.index)
            if isinstance(some.index, LoopVar)
            else self.sum([t.index if t and isinstance(t.index, Affine) else _NONE for t in terms]),
            self.numbers([1 if t is None else t.lower for t in terms]),
            self.numbers([INF if t is None else t.upper for t in terms]),
            self.numbers([0 if t is None else t.coef for t in terms]),
            self.numbers([INF if t is None else t.limit for t in terms]),
        )

    def sum(self, sums: Sequence[Affine]) -> Affine:
        kinds = [
            # The place of a loop; -1: a sum, whose terms are joined in turn.
            [place.get(t.index, -1) if isinstance(t.index, LoopVar) else -1 for t in one.terms]
            for one, place in zip(sums, self._place_of, strict=True)
        ]
        places, num = _aligned(kinds)
        terms: list[list[Term | None]] = [[None] * len(sums) for _ in range(num)]
        for batch, (one, own) in enumerate(zip(sums, places, strict=True)):
            for t, at in zip(one.terms, own, strict=True):
                terms[at][batch] = t
        return Affine(
            [self.term(some) for some in terms],
            self.numbers([one.base for one in sums]),
            self.numbers([one.limit for one in sums]),
        )

    def access(self, accesses: Sequence[NestAccess]) -> NestAccess:
        first = accesses[0]
        known = self._place_of[0]
        return NestAccess(
            buffer=first.buffer,
            sizes=[np.concatenate(x) for x in zip(*(a.sizes for a in accesses), strict=True)],
            indices=[
                [
                    IndexTerm(self.term([one.term for one in same]), self.num)
                    for same in zip(*dimension, strict=True)
                ]
                for dimension in zip(*(access.indices for access in accesses), strict=True)
            ],
            around=frozenset(self.variable(0, var) for var in first.around if var in known),
            num=self.num,
        )


_NONE = Affine()  # instead of the sum in a term that a batch lacks


def tables_of(
    statements: Sequence[NestStatement], table_of: Callable[[NestStatement], Table]
) -> list[Table]:
    """Compute ``table_of`` (reads no names or numbers of buffers) once per structure."""
    out: dict[NestStatement, Table] = {}
    for members in grouped(statements, _statement_structure):
        table = table_of(members[0] if len(members) == 1 else _joined_statement(members))
        # The joined table is cut back into the programs of each member, which are in order.
        ends = np.cumsum([member.num for member in members])[:-1]
        out |= zip(members, np.split(table, ends, axis=1), strict=True)
    return [out[statement] for statement in statements]


def _statement_structure(statement: NestStatement) -> Hashable:
    """Return a key of a statement without numbers; its own for strange variables."""
    places = {loop.var: place for place, loop in enumerate(statement.loops)}
    if len(places) < len(statement.loops):  # two loops share a variable
        return id(statement)
    try:
        return (
            tuple((loop.mark, loop.is_reduce, loop.is_own) for loop in statement.loops),
            count_operations(statement.value),
            tuple(tuple(sorted(places[var] for var in guard)) for guard in statement.guards),
            statement.is_reduction,
            tuple(
                (
                    access.buffer.bytes_per_element,
                    access.buffer.scope,
                    len(access.sizes),
                    tuple(sorted(places[var] for var in access.around if var in places)),
                    tuple(
                        tuple(_index_structure(t.term.index, places) for t in terms)
                        for terms in access.indices
                    ),
                )
                for access in (statement.write, *statement.reads)
            ),
        )
    except KeyError:
        return id(statement)


def _joined_statement(members: Sequence[NestStatement]) -> NestStatement:
    first = members[0]
    joined = _Joined([member.num for member in members], [member.loops for member in members])
    return replace(
        first,
        loops=[
            replace(
                same[0],
                var=joined.variable(0, same[0].var),
                extent=np.concatenate([loop.extent for loop in same]),
            )
            for same in zip(*(member.loops for member in members), strict=True)
        ],
        write=joined.access([member.write for member in members]),
        reads=[joined.access(a) for a in zip(*(m.reads for m in members), strict=True)],
        guards=[frozenset(joined.variable(0, var) for var in guard) for guard in first.guards],
        unroll=np.concatenate([member.unroll for member in members]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StoreMember:
    """A store of a nest, and the loops around it that some program has."""

    nests: LoopNests
    store: BufferStore
    loops: list[Loop]


def store_structure(member: StoreMember) -> Hashable:
    """Return a key that is equal where stores differ in loops and numbers alone."""
    # A wide nest fills arrays by itself: joining would only copy.
    nests, store = member.nests, member.store
    if nests.num_programs > _WIDE:
        return member
    known = {loop.var for loop in member.loops}
    touched = [nests.buffers[key] for key in _touched(store)]
    found = (
        tuple((buffer.key, len(buffer.shape), buffer.dtype) for buffer in touched),
        store.buffer.key in nests.allocations,
        store.value,
        len(store.slots),
    )
    try:
        hash(found)  # raises for numbers per program
    except TypeError:
        return member
    return found if all(variables_of(slot) <= known for slot in store.slots) else member


def joined_store(members: Sequence[StoreMember]) -> tuple[BufferStore, Buffers, list[list[int]]]:
    """Join stores of one structure; return store, buffers, places of each member's loops."""
    first = members[0]
    if len(members) == 1:
        return first.store, first.nests.buffers, [list(range(len(first.loops)))]
    stores = [member.store for member in members]
    joined = _Joined([x.nests.num_programs for x in members], [x.loops for x in members])
    buffers = {}
    for key in _touched(first.store):
        shapes = zip(*(x.nests.buffers[key].shape for x in members), strict=True)
        buffers[key] = replace(first.nests.buffers[key], shape=tuple(map(joined.numbers, shapes)))
    loops = zip(joined.variables, joined.marks, strict=True)
    store = replace(
        first.store,
        buffer=buffers[first.store.buffer.key],
        loops=tuple(Loop(var, var.extent, mark, None) for var, mark in loops),
        slots=tuple(map(joined.sum, zip(*(store.slots for store in stores), strict=True))),
        unroll=joined.numbers([store.unroll for store in stores]),
    )
    return store, buffers, joined.places


def _touched(store: BufferStore) -> list[int]:
    """Return the keys of a store's buffers, the written buffer first."""
    return list(dict.fromkeys([store.buffer.key, *(load.stage for load in loads(store.value))]))
