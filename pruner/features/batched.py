"""Batch statements of the same structure, across loop nests.

Programs that differ in the place of a stage have different nests, yet most of their statements have
the same loops: hundreds of nests have some dozens of kinds of statements. Features and symbols are
arithmetic on arrays of programs, which costs by the array, not by the program; and nothing of a
program depends on the others, so the numbers are those of the statements alone.

Stores are joined where their values and buffers are alike, whatever the loops around them: of the
joined loops each program has some, and one iteration of the others, which changes no number.
Statements of symbols, whose numbers depend on the roles of loops, are joined where their indices
have the same terms of loops in the same places. What depends on the stores before a store, the
touches that its loops have seen, is recorded nest by nest in program order.
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
    StatementLoop,
    count_choices,
    count_operations,
    variables_of,
)
from pruner.program.dag.expr import Load, walk
from pruner.program.index.affine import INF, Affine, LoopVar, Term, any_nonzero
from pruner.program.nests import BufferStore, Loop, LoopNests, Mark

_WIDE = 512  # programs of a nest that pay for its arrays by themselves
Table = Float[np.ndarray, "column program"]
Places = Mapping[LoopVar, int]  # of loops, outermost first
_LoopLike = Loop | StatementLoop


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


def _aligned(sequences: Sequence[Sequence[Hashable]]) -> tuple[list[list[int]], int]:
    """Place the items of all sequences in one common sequence.

    Equal items share a place as far as every sequence keeps its order. Returns each sequence's
    places, and the length of the common sequence.
    """
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
        out, start = np.empty(self.num, np.int64), 0
        for num, value in zip(self.nums, values, strict=True):
            out[start : start + num] = value
            start += num
        return out

    def variable(self, batch: int, var: LoopVar) -> LoopVar:
        """Return the joined variable of a batch's loop."""
        return self.variables[self._place_of[batch][var]]

    def term(self, terms: Sequence[Term | None]) -> Term:
        """Join a term of each batch: of one loop, or of sums."""
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
        """Join a sum of each batch."""
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
        """Join an access of each batch, all of one structure."""
        first = accesses[0]
        known = self._place_of[0]
        return NestAccess(
            buffer=first.buffer,
            sizes=_each_joined([access.sizes for access in accesses]),
            indices=[
                [self._index_term(terms) for terms in zip(*dimension, strict=True)]
                for dimension in zip(*(access.indices for access in accesses), strict=True)
            ],
            around=frozenset(self.variable(0, var) for var in first.around if var in known),
            num=self.num,
        )

    def _index_term(self, terms: Sequence[IndexTerm]) -> IndexTerm:
        term = self.term([one.term for one in terms])
        return IndexTerm(term, np.concatenate([t.scale for t in terms]), variables_of(term.index))


_NONE = Affine()  # instead of the sum in a term that a batch lacks


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
    first = members[0]
    joined = _Joined([member.num for member in members], [member.loops for member in members])
    return replace(
        first,
        num=joined.num,
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
        tile=_each_joined([member.tile for member in members]),
        unroll=np.concatenate([member.unroll for member in members]),
    )


_Member = tuple[LoopNests, BufferStore, list[Loop]]  # the loops that a program of the nest has


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
        found, places_of = [], []
        for joined in members:
            feet, loop_places = _footprints(joined)
            found.append(feet)
            places_of.append(zip(loop_places, [loops for _, _, loops in joined], strict=True))
        marked = [Marked.of(one.frame) for one in found]
        seen: list[list[Seen]] = [[] for _ in members]
        products: list[list[Floats]] = [[] for _ in members]
        # Touches depend on the stores before, so they are recorded nest by nest in program order.
        for one, places in zip(nests, parts, strict=True):
            recorder = Recorder(one, "unique")
            of_buffer: dict[int, Floats] = {}
            for store, part in zip(one.stores, places, strict=True):
                group, some, key = found[part.group], part.programs, store.buffer.key
                # Members come in the order of the nests, and so do the places of their loops.
                rows, loops = next(places_of[part.group])
                elements = [foot.elements[rows, some] for foot in group.feet]
                touched = list(zip(group.accesses, elements, strict=True))
                own = recorder.record(store, loops, touched)
                seen[part.group].append(own.among(rows, len(group.frame.extents)))
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
    every = [(one, store, _loops_of(store)) for one in nests for store in one.stores]
    groups = _grouped(_store_structure(*member) for member in every)
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
    return [loop for loop in store.loops if any_nonzero(loop.present)]


def _store_structure(nests: LoopNests, store: BufferStore, loops: list[Loop]) -> Hashable:
    """Return a key that is equal where stores differ in loops and numbers alone.

    A store gets a key of its own where its indices have variables of no loop around it, or its
    value has numbers per program.
    """
    # A wide nest fills arrays by itself: joining would only copy.
    if nests.num_programs > _WIDE:
        return id(store)
    known = {loop.var for loop in loops}
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
        return id(store)
    return found if all(variables_of(slot) <= known for slot in store.slots) else id(store)


def _footprints(members: Sequence[_Member]) -> tuple[Footprints, list[list[int]]]:
    """Return the footprints of all programs, in the order of the members.

    Also the places of each member's loops among the loops of the footprints.
    """
    nests, first, _ = members[0]
    stores, loops = [store for _, store, _ in members], [loops for _, _, loops in members]
    if len(members) == 1:
        rows = [list(range(len(loops[0])))]
        return Footprints.of(first, nests.buffers, nests.num_programs), rows
    joined = _Joined([one.num_programs for one, _, _ in members], loops)
    buffers = {
        key: replace(
            nests.buffers[key],
            shape=tuple(
                joined.numbers(sizes)
                for sizes in zip(*(one.buffers[key].shape for one, _, _ in members), strict=True)
            ),
        )
        for key in _touched(first)
    }
    store = replace(
        first,
        buffer=buffers[first.buffer.key],
        loops=tuple(
            Loop(var, var.extent, mark, None)
            for var, mark in zip(joined.variables, joined.marks, strict=True)
        ),
        slots=tuple(joined.sum(same) for same in zip(*(s.slots for s in stores), strict=True)),
        unroll=joined.numbers([store.unroll for store in stores]),
    )
    return Footprints.of(store, buffers, joined.num), joined.places


def _touched(store: BufferStore) -> list[int]:
    """Return the keys of a store's buffers, the written buffer first."""
    read = (node.stage for node in walk(store.value) if isinstance(node, Load))
    return list(dict.fromkeys([store.buffer.key, *read]))


def _stored(members: Sequence[_Member]) -> Floats | None:
    """Return :func:`stored_sizes` of all programs."""
    found = [
        stored_sizes(one.allocations.get(store.buffer.key), one.num_programs)
        for one, store, _ in members
    ]
    sizes = [size for size in found if size is not None]
    return np.concatenate(sizes, 1) if sizes else None
