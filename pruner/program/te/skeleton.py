"""Schedule primitives as frozen values, read off Ansor's steps; records by skeleton.

Every tile length and unroll depth of a skeleton is a *slot*, its place in the decision vector.
``stage`` and ``iter`` count after the steps before, as in Ansor's log (docs/ansor-steps.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import UnknownStep, UnsupportedProgram

# The order is IteratorAnnotation's: logs hold the position.
ANNOTATIONS = (
    "none", "unroll", "vectorize", "parallel", "vthread", "blockIdx.x", "threadIdx.x",
    "blockIdx.y", "threadIdx.y", "blockIdx.z", "threadIdx.z", "tensorize",
)  # fmt: skip
UNROLL_PRAGMA = "auto_unroll_max_step"
MAX_UNROLL = 2**31


@dataclass(frozen=True, slots=True)
class Slot:
    """A field that is a decision: its place in the decision vector."""

    number: int


@dataclass(frozen=True, slots=True)
class Step:
    """A schedule primitive: its tag in Ansor's log, and its fields in order.

    Lengths and unroll depths are slots; logged extents and amounts of row padding are left out.
    ``MS`` is a whole program of MetaSchedule: design space and decisions.
    """

    tag: str
    fields: tuple[Any, ...]


def parse_steps(steps: list[list[Any]]) -> tuple[tuple[Step, ...], list[int]]:
    """Return a record's skeleton and decision vector.

    Raises `UnknownStep` for a tag outside Ansor's vocabulary, `UnsupportedProgram` for bad fields.
    """
    found: list[Step] = []
    decisions: list[int] = []
    for number, step in enumerate(steps):
        try:
            found.append(_parse(step, decisions))
        except (IndexError, TypeError, ValueError) as error:
            raise UnsupportedProgram(
                "malformed-step", f"step {number} {step!r:.80}: {error}"
            ) from error
    return tuple(found), decisions


def unroll_depth(text: str) -> int:
    """Return the number behind ``auto_unroll_max_step$``; raise ValueError without it."""
    name, _, number = text.partition("$")
    if name != UNROLL_PRAGMA:
        raise ValueError(f"no pragma {UNROLL_PRAGMA}")
    depth = int(number)
    if not 0 <= depth <= MAX_UNROLL:
        raise ValueError(f"an unroll depth outside 0 to {MAX_UNROLL}")
    return depth


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError("a flag that is neither 0 nor 1")
    return bool(value)


def _slots(values: list[int], decisions: list[int]) -> tuple[Slot, ...]:
    first = len(decisions)
    decisions.extend(int(v) for v in values)
    # Slots count up with the steps, so a decision vector is the log's numbers in order.
    return tuple(map(Slot, range(first, len(decisions))))


def _parse(step: list[Any], decisions: list[int]) -> Step:
    fields: tuple[Any, ...]
    match step:
        case ["SP", stage, it, _extent, lengths, inner_to_outer]:
            # `skeleton` compares the logged extent; the split needs only its lengths.
            fields = stage, it, _slots(lengths, decisions), _flag(inner_to_outer)
        case ["FFSP", stage, it, sources, level, by_factor]:
            fields = stage, it, tuple(sources), level, _flag(by_factor)
        case ["RE" | "FU", stage, numbers]:
            fields = stage, tuple(numbers)
        case ["AN", stage, it, kind]:
            fields = stage, it, ANNOTATIONS[kind]  # a number in the log
        case ["PR", stage, it, text]:
            if str(text).partition("$")[0] != UNROLL_PRAGMA:
                raise UnsupportedProgram("unknown-pragma", repr(text)[:80])
            fields = stage, it, *_slots([unroll_depth(text)], decisions)
        case ["CHR", stage, scope, readers]:
            fields = stage, scope, tuple(readers)
        case ["SA", stage, it, _factor, _offset]:
            fields = stage, it
        case ["MS", str(space), values]:
            fields = space, _slots(values, decisions)
        case ["FSP", _, _, _, _] | ["CA" | "RF", _, _, _] | ["CHW", _, _] | ["CI" | "CR", _]:
            fields = tuple(step[1:])
        case _:
            raise UnknownStep("unknown-step", repr(step)[:80])
    return Step(step[0], fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonGroup:
    """Programs that share a skeleton.

    ``rows`` int64 [N]: positions in the input sequence; ``decisions`` int64 [N, d]. ``extents``
    int64 [N, splits]: the logged extent of each split loop, 0 where Ansor has not inferred it.
    """

    skeleton: tuple[Step, ...]
    rows: NDArray[np.int64]
    decisions: NDArray[np.int64]
    extents: NDArray[np.int64] | None = None

    def select(self, chosen: slice | NDArray[np.bool_]) -> SkeletonGroup:
        """Return the chosen programs of the group."""
        extents = None if self.extents is None else self.extents[chosen]
        return replace(
            self, rows=self.rows[chosen], decisions=self.decisions[chosen], extents=extents
        )

    def chunks(self, size: int) -> Iterator[SkeletonGroup]:
        """Yield the group in parts of at most `size` programs."""
        for start in range(0, len(self.rows), size):
            yield self.select(slice(start, start + size))


_Steps = list[list[Any]]
_Column = Sequence[Any]  # one value a program
_OPEN = {"SP": (3, 4), "MS": (2,), "PR": (3,)}  # fields that may differ; the last holds decisions
# Tuples of 500 programs stay in the CPU's caches and below the threshold of Python's collector.
_AT_ONCE = 500
_COMPARED = 16  # skeletons of one length, found by comparison before outlines are made


def _conditions(
    first: _Steps, programs: Sequence[_Steps], decisions: list[_Column], extents: list[_Column]
) -> Iterator[tuple[_Column, Any]]:
    """Yield (column, its value in ``first``), each once the earlier pairs hold.

    Fields that may differ are collected in ``decisions`` and ``extents``.
    """
    for step, column in zip(first, zip(*programs, strict=True), strict=True):
        if step[0] not in _OPEN:
            yield column, step
            continue
        yield _each(type, column), list
        yield _each(len, column), len(step)
        fields, free = list(zip(*column, strict=True)), _OPEN[step[0]]
        for place, field in enumerate(fields):
            if place not in free:
                yield field, step[place]
        if step[0] == "SP":
            extents.append(fields[3])
        field, value = fields[free[-1]], step[free[-1]]
        yield _each(type, field), type(value)
        # Decisions of a pragma hide in its text, auto_unroll_max_step$64; the texts are few.
        if isinstance(value, str):
            depths = {text: _depth(text) for text in set(field)}
            columns = [_each(depths.__getitem__, field)]
        else:
            yield _each(len, field), len(value)
            columns = list(zip(*field, strict=True))
        for numbers in columns:
            yield _each(type, numbers), int
        decisions += columns


def _each(function: Callable[[Any], Any], column: _Column) -> _Column:
    return tuple(map(function, column))


def _depth(text: str) -> int | None:
    """Return the depth of an unroll pragma; None where damaged (`parse_steps` has why)."""
    try:
        return unroll_depth(text)
    except ValueError:
        return None


class _Members:
    """Programs of one skeleton, collected in parts."""

    def __init__(self, first: _Steps) -> None:
        self.rows: list[int] = []
        self._first = first
        self._skeleton, self._vector = parse_steps(first)
        self._decisions: list[NDArray[np.int64]] = []
        self._extents: list[NDArray[np.int64]] = []

    def take(self, rows: list[int], steps_list: Sequence[_Steps]) -> list[int]:
        """Add the rows that have the skeleton; return the other rows."""
        others: list[int] = []
        while rows:
            decisions: list[_Column] = []
            extents: list[_Column] = []
            programs = [steps_list[row] for row in rows]
            pairs = _conditions(self._first, programs, decisions, extents)
            # Column by column, so that C code (`count`) compares, ten times faster than a loop.
            differs = next(((c, wanted) for c, wanted in pairs if c.count(wanted) < len(c)), None)
            if differs is None:
                self._add(rows, decisions, extents)
                break
            fitting = [value == differs[1] for value in differs[0]]
            others += [row for row, fits in zip(rows, fitting, strict=True) if not fits]
            rows = [row for row, fits in zip(rows, fitting, strict=True) if fits]
        return others

    def take_first(self, row: int) -> None:
        """Add the compared program itself, though its numbers are not all plain."""
        extents = [[step[3]] for step in self._first if step[0] == "SP"]
        self._add([row], [[value] for value in self._vector], extents)

    def _add(
        self, rows: list[int], decisions: Sequence[_Column], extents: Sequence[_Column]
    ) -> None:
        self.rows += rows
        self._decisions.append(_table(decisions, len(rows)))
        self._extents.append(_table(extents, len(rows)))

    def group(self) -> SkeletonGroup:
        return SkeletonGroup(
            skeleton=self._skeleton,
            rows=np.asarray(self.rows, np.int64),
            decisions=np.concatenate(self._decisions),
            extents=np.concatenate(self._extents),
        )


def _table(columns: Sequence[_Column], num: int) -> NDArray[np.int64]:
    out = np.empty((num, len(columns)), np.int64)
    for place, column in enumerate(columns):
        out[:, place] = np.fromiter(column, np.int64, num)
    return out


def _kind(steps: list[list[Any]]) -> tuple[str, int] | None:
    """Return space and number of decisions of a trace; otherwise None."""
    if len(steps) != 1:
        return None
    match steps[0]:
        case ["MS", str(space), list(values)]:
            return space, len(values)
        case _:
            return None


def _taken(members: _Members, rows: list[int], steps_list: Sequence[_Steps]) -> list[int]:
    """Give ``members`` all programs of its skeleton; return the other rows."""
    others: list[int] = []
    for start in range(0, len(rows), _AT_ONCE):
        others += members.take(rows[start : start + _AT_ONCE], steps_list)
    if rows[0] in others[:_AT_ONCE]:
        members.take_first(rows[0])
        others.remove(rows[0])
    return sorted(others)


def _groups_of(
    rows: list[int], steps_list: Sequence[_Steps], failures: dict[int, UnsupportedProgram]
) -> Iterator[SkeletonGroup]:
    """Group some rows by skeleton; unreadable rows go to `failures`."""
    start = found = 0
    while start < len(rows):
        try:
            members = _Members(steps_list[rows[start]])
        except UnsupportedProgram as error:
            failures[rows[start]] = error
            start += 1
            continue
        rows, start = _taken(members, rows[start:], steps_list), 0
        yield members.group()
        found += 1
        # Comparing costs skeletons x programs: with many skeletons, partition by outline first.
        if found == _COMPARED and len(parts := _by_outline(rows, steps_list)) > 1:
            for part in parts:
                yield from _groups_of(part, steps_list, failures)
            return


def _by_outline(rows: list[int], steps_list: Sequence[_Steps]) -> list[list[int]]:
    parts: dict[Hashable, list[int]] = {}
    for row in rows:
        parts.setdefault(_outline(steps_list[row]), []).append(row)
    return list(parts.values())


def _outline(part: Any) -> Hashable:
    """Return the steps without their decisions, as a hashable value."""
    if not isinstance(part, list):
        return part if isinstance(part, Hashable) else None
    free = _OPEN.get(part[0], ()) if part and isinstance(part[0], str) else ()
    return tuple(_outline(x) for place, x in enumerate(part) if place not in free)


def group_programs(
    steps_list: Sequence[_Steps],
) -> tuple[list[SkeletonGroup], dict[int, UnsupportedProgram]]:
    """Return groups by skeleton, largest first, and the reason of each unread row."""
    alike: dict[Hashable, list[int]] = {}
    for row, steps in enumerate(steps_list):
        alike.setdefault((len(steps), _kind(steps)), []).append(row)
    failures: dict[int, UnsupportedProgram] = {}
    groups = [group for rows in alike.values() for group in _groups_of(rows, steps_list, failures)]
    # Ties by first row: the order must not depend on hashing.
    return sorted(groups, key=lambda g: (-len(g.rows), g.rows.min())), failures
