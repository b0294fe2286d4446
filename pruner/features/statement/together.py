"""Batch the stores that have the same structure, across loop nests.

As :mod:`pruner.features.symbols.together`: what a store touches, its strides, its operations and
its columns are arithmetic on arrays of programs, which costs by the array. What depends on the
stores before it, the touches that its loops have seen, is recorded nest by nest in program order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.columns import STATEMENT_COLUMNS
from pruner.features.statement.analysis import Footprints, Recorder, StoreAnalysis
from pruner.features.statement.features import Marked, statement_columns, stored_sizes
from pruner.features.statement.touches import Seen
from pruner.program.dag.expr import Load, walk
from pruner.program.index.joined import Joined, structure_of
from pruner.program.nests import BufferStore, Loop, LoopNests

_WIDE = 512  # programs of a nest that pay for its arrays by themselves


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The programs of one store among those of its group."""

    group: int
    programs: slice


@dataclass(frozen=True, slots=True, eq=False)
class StoresTogether:
    """Stores of CPU programs: ``groups`` of one structure each, and by nest and store, in program
    order, the ``parts`` that are theirs; ``tables``: statement columns of each group [column, N],
    None where later stores replace all of its stores."""

    nests: Sequence[LoopNests]
    groups: list[StoreAnalysis]
    parts: list[list[Part]]
    tables: list[NDArray[np.float32] | None]

    @staticmethod
    def of(nests: Sequence[LoopNests]) -> StoresTogether:
        """Of nests of programs without GPU indices; each loop is told from all others."""
        members, parts = _grouped(nests)
        found = [_footprints(some) for some in members]
        marked = [Marked.of(one.frame) for one in found]
        seen: list[list[Seen]] = [[] for _ in members]
        products: list[list[Floats]] = [[] for _ in members]
        for one, places in zip(nests, parts, strict=True):
            recorder = Recorder(one, "unique")
            of_buffer: dict[int, Floats] = {}
            for store, part in zip(one.stores, places, strict=True):
                group, some, key = found[part.group], part.programs, store.buffer.key
                elements = [foot.elements[:, some] for foot in group.feet]
                touched = list(zip(group.accesses, elements, strict=True))
                seen[part.group].append(recorder.record(store, _loops_of(store), touched))
                stale = of_buffer.get(
                    key, np.zeros((len(marked[part.group].some), one.num_programs))
                )
                of_buffer[key] = marked[part.group].products(stale, some)
                products[part.group].append(of_buffer[key])
        groups = [
            one.analysed(Seen.joined(some), is_gpu=False)
            for one, some in zip(found, seen, strict=True)
        ]
        last = {parts[n][store].group for n, one in enumerate(nests) for store in _last(one)}
        tables = [
            statement_columns(groups[n], np.concatenate(products[n], 1), _stored(members[n]))
            if n in last
            else None
            for n in range(len(groups))
        ]
        return StoresTogether(nests, groups, parts, tables)

    def statement_rows(self) -> list[NDArray[np.float32]]:
        """Those of :func:`~pruner.features.statement.features.statement_features`, by nest."""
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
    """Places of the last store of each buffer, buffers in order of their first."""
    return list({store.buffer.key: place for place, store in enumerate(nests.stores)}.values())


_Member = tuple[LoopNests, BufferStore]


def _grouped(nests: Sequence[LoopNests]) -> tuple[list[list[_Member]], list[list[Part]]]:
    """Stores by structure, and where those of every nest are among them."""
    numbers: dict[Hashable, int] = {}
    members: list[list[_Member]] = []
    ends: list[int] = []
    parts = []
    for one in nests:
        found = []
        for store in one.stores:
            number = numbers.setdefault(_structure(one, store), len(members))
            if number == len(members):
                members.append([])
                ends.append(0)
            members[number].append((one, store))
            found.append(Part(number, slice(ends[number], ends[number] + one.num_programs)))
            ends[number] += one.num_programs
        parts.append(found)
    return members, parts


def _loops_of(store: BufferStore) -> list[Loop]:
    """Those that a program has."""
    return [loop for loop in store.loops if np.any(loop.present)]


def _structure(nests: LoopNests, store: BufferStore) -> Hashable:
    """Equal where stores differ in the numbers of their programs alone.

    One whose indices have variables of no loop around it stays alone, and so does one with numbers
    of programs in its value.
    """
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
            tuple(structure_of(slot, places) for slot in store.slots),
        )
        hash(found)
    except (KeyError, TypeError):
        return id(store)
    return found


def _footprints(members: Sequence[_Member]) -> Footprints:
    """Of all programs, in the order of the members."""
    nests, first = members[0]
    if len(members) == 1:
        return Footprints.of(first, nests.buffers, nests.num_programs)
    stores, loops = [store for _, store in members], [_loops_of(store) for _, store in members]
    variables = [[loop.var for loop in some] for some in loops]
    joined = Joined.of([one.num_programs for one, _ in members], variables)
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
    return Footprints.of(store, buffers, sum(joined.nums))


def _touched(store: BufferStore) -> list[int]:
    """Keys of its buffers, the written one first."""
    read = (node.stage for node in walk(store.value) if isinstance(node, Load))
    return list(dict.fromkeys([store.buffer.key, *read]))


def _stored(members: Sequence[_Member]) -> Floats | None:
    """:func:`stored_sizes` of all programs."""
    found = [
        stored_sizes(one.allocations.get(store.buffer.key), one.num_programs)
        for one, store in members
    ]
    sizes = [size for size in found if size is not None]
    return np.concatenate(sizes, 1) if sizes else None
