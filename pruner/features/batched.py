"""Batch statements of the same structure, across loop nests.

Programs that differ in the place of a stage have different nests, yet most of their statements have
the same loops: hundreds of nests have some dozens of kinds of statements. Features and symbols are
arithmetic on arrays of programs, which costs by the array, not by the program; and nothing of a
program depends on the others, so the numbers are those of the statements alone.

Statements are joined where their expressions have one structure: the same terms of loops in the
same places, whatever the numbers. What depends on the stores before a store, the touches that its
loops have seen, is recorded nest by nest in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from pruner.arrays import Floats, IntLike
from pruner.features.columns import STATEMENT_COLUMNS
from pruner.features.statement.analysis import Footprints, Recorder, StoreAnalysis
from pruner.features.statement.features import Marked, statement_columns, stored_sizes
from pruner.features.statement.touches import Seen
from pruner.features.symbols.statement import (
    IndexTerm,
    NestAccess,
    NestStatement,
    count_choices,
    count_operations,
    variables_of,
)
from pruner.program.dag.expr import Load, walk
from pruner.program.index.affine import Affine, LoopVar, Term
from pruner.program.nests import BufferStore, Loop, LoopNests

_WIDE = 512  # programs of a nest that pay for its arrays by themselves
Table = Float[np.ndarray, "column program"]
Places = Mapping[LoopVar, int]  # of loops, outermost first


def _grouped(structures: Iterable[Hashable]) -> list[list[int]]:
    """Return the numbers of items by structure, in order of first item."""
    groups: dict[Hashable, list[int]] = {}
    for number, structure in enumerate(structures):
        groups.setdefault(structure, []).append(number)
    return list(groups.values())


def _sum_structure(value: Affine, places: Places) -> Hashable:
    """Return a key that is equal where sums differ in numbers alone.

    Raises `KeyError` where a variable has no place.
    """
    return tuple(_term_structure(t, places) for t in value.terms)


def _term_structure(term: Term, places: Places) -> Hashable:
    if isinstance(term.index, LoopVar):
        return places[term.index]
    return _sum_structure(term.index, places)


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """Batches joined: ``nums`` programs each, ``variables`` of all by the first's."""

    nums: Sequence[int]
    variables: dict[LoopVar, LoopVar]

    @staticmethod
    def of(nums: Sequence[int], loops: Sequence[Sequence[LoopVar]]) -> _Joined:
        """Join ``loops``, the variables of each batch, place by place."""
        joined = _Joined(nums, {})
        for same in zip(*loops, strict=True):
            extent = joined.numbers([var.extent for var in same])
            joined.variables[same[0]] = LoopVar(same[0].name, extent)
        return joined

    @property
    def num(self) -> int:
        """Number of programs of all batches."""
        return sum(self.nums)

    def numbers(self, values: Sequence[IntLike]) -> IntLike:
        """Join one number a program; a plain number where all batches agree."""
        first = values[0]
        if isinstance(first, int) and all(isinstance(x, int) and x == first for x in values):
            return first
        out, start = np.empty(self.num, np.int64), 0
        for num, value in zip(self.nums, values, strict=True):
            out[start : start + num] = value
            start += num
        return out

    def term(self, terms: Sequence[Term]) -> Term:
        """Join a term of each batch, all of one structure."""
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
        """Join a sum of each batch, all of one structure."""
        return Affine(
            [self.term(terms) for terms in zip(*(one.terms for one in sums), strict=True)],
            self.numbers([one.base for one in sums]),
            self.numbers([one.limit for one in sums]),
        )

    def access(self, accesses: Sequence[NestAccess]) -> NestAccess:
        """Join an access of each batch."""
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
        term = self.term([one.term for one in terms])
        return IndexTerm(term, np.concatenate([t.scale for t in terms]), variables_of(term.index))


def _each_joined(values: Sequence[Sequence[Floats]]) -> list[Floats]:
    return [np.concatenate(some) for some in zip(*values, strict=True)]


def tables_of(
    statements: Sequence[NestStatement], table_of: Callable[[NestStatement], Table]
) -> list[Table]:
    """Compute ``table_of`` of every statement, once per structure.

    ``table_of`` may use loops, accesses and operations, but neither names nor numbers of buffers.
    """
    out: dict[int, Table] = {}
    for numbers in _grouped(map(_statement_structure, statements)):
        members = [statements[number] for number in numbers]
        table = table_of(members[0] if len(members) == 1 else _joined_statement(members))
        # The joined table is cut back into the programs of each member, which are in order.
        ends = np.cumsum([member.num for member in members])[:-1]
        out |= zip(numbers, np.split(table, ends, axis=1), strict=True)
    return [out[number] for number in range(len(statements))]


def _statement_structure(statement: NestStatement) -> Hashable:
    """Return a key that is equal where statements differ in numbers alone.

    A statement whose indices have variables of no loop around it, or of two loops, gets a key of
    its own.
    """
    places = {loop.var: place for place, loop in enumerate(statement.loops)}
    if len(places) < len(statement.loops):  # two loops share a variable
        return id(statement)
    try:
        return (
            tuple((loop.mark, loop.is_reduce, loop.is_own) for loop in statement.loops),
            count_operations(statement.value),
            count_choices(statement.value),
            statement.is_reduction,
            len(statement.tile),
            tuple(
                (
                    access.bytes_per_element,
                    access.scope,
                    len(access.sizes),
                    tuple(sorted(places[var] for var in access.around if var in places)),
                    tuple(
                        tuple(_term_structure(t.term, places) for t in terms)
                        for terms in access.indices
                    ),
                )
                for access in (statement.write, *statement.reads)
            ),
        )
    except KeyError:
        return id(statement)


def _joined_statement(members: Sequence[NestStatement]) -> NestStatement:
    """Join the statements of all members, in their order."""
    first, variables = members[0], [[loop.var for loop in member.loops] for member in members]
    joined = _Joined.of([member.num for member in members], variables)
    return replace(
        first,
        num=joined.num,
        loops=[
            replace(
                same[0],
                var=joined.variables[same[0].var],
                extent=np.concatenate([loop.extent for loop in same]),
            )
            for same in zip(*(member.loops for member in members), strict=True)
        ],
        write=joined.access([member.write for member in members]),
        reads=[joined.access(a) for a in zip(*(m.reads for m in members), strict=True)],
        tile=_each_joined([member.tile for member in members]),
        unroll=np.concatenate([member.unroll for member in members]),
    )


_Member = tuple[LoopNests, BufferStore]


@dataclass(frozen=True, slots=True, eq=False)
class GroupPart:
    """The programs of one store among the programs of its group."""

    group: int
    programs: slice


@dataclass(frozen=True, slots=True, eq=False)
class BatchedStores:
    """Stores of CPU programs, grouped by structure.

    ``groups`` of one structure each; ``parts``: by nest and store, in program order, the place in
    the groups; ``tables``: statement columns of each group [column, N], None where later stores
    replace all of its stores.
    """

    nests: Sequence[LoopNests]
    groups: list[StoreAnalysis]
    parts: list[list[GroupPart]]
    tables: list[NDArray[np.float32] | None]

    @staticmethod
    def of(nests: Sequence[LoopNests]) -> BatchedStores:
        """Group the stores of nests without GPU indices.

        Loops are numbered uniquely, see :func:`~pruner.features.statement.touches.number_loops`.
        """
        members, parts = _stores_grouped(nests)
        found = [_footprints(some) for some in members]
        marked = [Marked.of(one.frame) for one in found]
        seen: list[list[Seen]] = [[] for _ in members]
        products: list[list[Floats]] = [[] for _ in members]
        # Touches depend on the stores before, so they are recorded nest by nest in program order.
        for one, places in zip(nests, parts, strict=True):
            recorder = Recorder(one, "unique")
            of_buffer: dict[int, Floats] = {}
            for store, part in zip(one.stores, places, strict=True):
                group, some, key = found[part.group], part.programs, store.buffer.key
                elements = [foot.elements[:, some] for foot in group.feet]
                touched = list(zip(group.accesses, elements, strict=True))
                seen[part.group].append(recorder.record(store, _loops_of(store), touched))
                # Products survive from store to store of a buffer, so they are kept per nest (see
                # `Marked`).
                stale = of_buffer.get(
                    key, np.zeros((len(marked[part.group].some), one.num_programs))
                )
                of_buffer[key] = marked[part.group].products(stale, some)
                products[part.group].append(of_buffer[key])
        groups = [
            one.analysed(Seen.joined(some), is_gpu=False)
            for one, some in zip(found, seen, strict=True)
        ]
        # Only the last store of a buffer has a row (the official code keys rows by buffer).
        last = {parts[n][store].group for n, one in enumerate(nests) for store in _last(one)}
        tables = [
            statement_columns(groups[n], np.concatenate(products[n], 1), _stored(members[n]))
            if n in last
            else None
            for n in range(len(groups))
        ]
        return BatchedStores(nests, groups, parts, tables)

    def statement_rows(self) -> list[NDArray[np.float32]]:
        """Return the rows of ``statement_features``, by nest.

        As :func:`~pruner.features.statement.features.statement_features`.
        """
        out = []
        for one, parts in zip(self.nests, self.parts, strict=True):
            last = _last(one)
            rows = np.zeros((one.num_programs, len(last), len(STATEMENT_COLUMNS)), np.float32)
            for row, store in enumerate(last):
                table = self.tables[parts[store].group]
                assert table is not None
                rows[:, row] = table[:, parts[store].programs].T
            out.append(rows)
        return out


def _last(nests: LoopNests) -> list[int]:
    """Return the last store of each buffer, in order of first store."""
    return list({store.buffer.key: place for place, store in enumerate(nests.stores)}.values())


def _stores_grouped(
    nests: Sequence[LoopNests],
) -> tuple[list[list[_Member]], list[list[GroupPart]]]:
    """Group stores by structure; return members and each store's part."""
    every = [(one, store) for one in nests for store in one.stores]
    groups = _grouped(_store_structure(one, store) for one, store in every)
    part_of: dict[int, GroupPart] = {}
    for group, numbers in enumerate(groups):
        end = 0
        for number in numbers:
            start, end = end, end + every[number][0].num_programs
            part_of[number] = GroupPart(group, slice(start, end))
    flat = iter(part_of[number] for number in range(len(every)))
    parts = [[next(flat) for _ in one.stores] for one in nests]
    return [[every[number] for number in numbers] for numbers in groups], parts


def _loops_of(store: BufferStore) -> list[Loop]:
    """Return the loops that a program of the nest has."""
    return [loop for loop in store.loops if np.any(loop.present)]


def _store_structure(nests: LoopNests, store: BufferStore) -> Hashable:
    """Return a key that is equal where stores differ in numbers alone.

    A store gets a key of its own where its indices have variables of no loop around it, or its
    value has numbers per program.
    """
    # A wide nest fills arrays by itself: joining would only copy.
    if nests.num_programs > _WIDE:
        return id(store)
    loops = _loops_of(store)
    places = {loop.var: place for place, loop in enumerate(loops)}
    touched = [nests.buffers[key] for key in _touched(store)]
    try:
        found = (
            tuple(loop.mark for loop in loops),
            tuple((buffer.key, len(buffer.shape), buffer.dtype) for buffer in touched),
            store.buffer.key in nests.allocations,
            store.value,
            tuple(_sum_structure(slot, places) for slot in store.slots),
        )
        hash(found)  # raises for numbers per program
    except (KeyError, TypeError):
        return id(store)
    return found


def _footprints(members: Sequence[_Member]) -> Footprints:
    """Return the footprints of all programs, in the order of the members."""
    nests, first = members[0]
    if len(members) == 1:
        return Footprints.of(first, nests.buffers, nests.num_programs)
    stores, loops = [store for _, store in members], [_loops_of(store) for _, store in members]
    variables = [[loop.var for loop in some] for some in loops]
    joined = _Joined.of([one.num_programs for one, _ in members], variables)
    buffers = {
        key: replace(
            nests.buffers[key],
            shape=tuple(
                joined.numbers(sizes)
                for sizes in zip(*(one.buffers[key].shape for one, _ in members), strict=True)
            ),
        )
        for key in _touched(first)
    }
    store = replace(
        first,
        buffer=buffers[first.buffer.key],
        loops=tuple(
            replace(loop, var=joined.variables[loop.var], extent=joined.variables[loop.var].extent)
            for loop in loops[0]
        ),
        slots=tuple(joined.sum(same) for same in zip(*(s.slots for s in stores), strict=True)),
        unroll=joined.numbers([store.unroll for store in stores]),
    )
    return Footprints.of(store, buffers, joined.num)


def _touched(store: BufferStore) -> list[int]:
    """Return the keys of a store's buffers, the written buffer first."""
    read = (node.stage for node in walk(store.value) if isinstance(node, Load))
    return list(dict.fromkeys([store.buffer.key, *read]))


def _stored(members: Sequence[_Member]) -> Floats | None:
    """Return :func:`stored_sizes` of all programs."""
    found = [
        stored_sizes(one.allocations.get(store.buffer.key), one.num_programs)
        for one, store in members
    ]
    sizes = [size for size in found if size is not None]
    return np.concatenate(sizes, 1) if sizes else None
