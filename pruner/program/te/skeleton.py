"""Grouping of records by skeleton: same primitives, different decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import UnsupportedProgram
from pruner.program.te.steps import Primitive, parse_steps, unroll_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonGroup:
    """Programs that share a skeleton.

    ``rows`` int64 [N]: positions in the input sequence; ``decisions`` int64 [N, d]. ``extents``
    int64 [N, splits]: what the log says of each loop that is split, 0 where it does not.
    """

    skeleton: tuple[Primitive, ...]
    rows: NDArray[np.int64]
    decisions: NDArray[np.int64]
    extents: NDArray[np.int64] | None = None

    def select(self, chosen: slice | NDArray[np.bool_]) -> SkeletonGroup:
        """The chosen programs of the group."""
        extents = None if self.extents is None else self.extents[chosen]
        return replace(
            self, rows=self.rows[chosen], decisions=self.decisions[chosen], extents=extents
        )

    def chunks(self, size: int) -> Iterator[SkeletonGroup]:
        """The group in parts of at most `size` programs."""
        for start in range(0, len(self.rows), size):
            yield self.select(slice(start, start + size))


class _Template:
    """Fast test whether a step list has one known skeleton, reading its decisions on the way."""

    def __init__(self, steps: list[list[Any]], skeleton: tuple[Primitive, ...]) -> None:
        self.skeleton = skeleton
        self.size = len(steps)
        self.rows: list[int] = []
        self.decisions: list[list[int]] = []
        self.extents: list[list[int]] = []
        self._splits = [i for i, s in enumerate(steps) if s[0] == "SP"]
        free = [i for i, s in enumerate(steps) if s[0] in ("SP", "PR", "MS")]
        fixed = [i for i in range(len(steps)) if i not in set(free)]
        self._fixed = fixed
        self._frozen = [steps[i] for i in fixed]
        self._free = [(i, self._head(steps[i])) for i in free]

    @staticmethod
    def _head(step: list[Any]) -> tuple[Any, ...]:
        if step[0] == "SP":
            return ("SP", step[1], step[2], len(step[4]), step[5])
        if step[0] == "MS":
            return ("MS", step[1], len(step[2]))
        return ("PR", step[1], step[2])

    def read(self, steps: list[list[Any]]) -> list[int] | None:
        """Decision vector, or None when the skeleton differs or a field cannot be read."""
        if len(steps) != self.size or [steps[i] for i in self._fixed] != self._frozen:
            return None
        out: list[int] = []
        try:
            for i, head in self._free:
                step = steps[i]
                if self._head(step) != head:
                    return None
                if head[0] == "SP":
                    out.extend(step[4])
                elif head[0] == "MS":
                    out.extend(step[2])
                else:
                    out.append(unroll_depth(step[3]))
        except (IndexError, TypeError, ValueError, AttributeError):
            return None  # the full reader names what is wrong
        return out if all(type(v) is int for v in out) else None

    def add(self, row: int, steps: list[list[Any]], decisions: list[int]) -> None:
        """One program of this skeleton, `row` of the input."""
        self.rows.append(row)
        self.decisions.append(decisions)
        self.extents.append([steps[i][3] or 0 for i in self._splits])


def _kind(steps: list[list[Any]]) -> tuple[str, int] | None:
    """Space and number of decisions of a trace: a task may have thousands of spaces."""
    if len(steps) != 1:
        return None
    match steps[0]:
        case ["MS", str(space), list(values)]:
            return space, len(values)
        case _:
            return None


def group_programs(
    steps_list: Sequence[list[list[Any]]],
) -> tuple[list[SkeletonGroup], dict[int, UnsupportedProgram]]:
    """Group step lists by skeleton.

    Returns the groups (largest first) and, for rows that cannot be read, the reason by position.
    """
    templates: list[_Template] = []
    by_kind: dict[tuple[str, int] | None, list[_Template]] = {}
    failures: dict[int, UnsupportedProgram] = {}
    for row, steps in enumerate(steps_list):
        alike = by_kind.setdefault(_kind(steps), [])
        for template in alike:
            found = template.read(steps)
            if found is not None:
                break
        else:
            try:
                skeleton, found = parse_steps(steps)
            except UnsupportedProgram as error:
                failures[row] = error
                continue
            template = _Template(steps, skeleton)
            templates.append(template)
            alike.append(template)
        template.add(row, steps, found)
    groups = [
        SkeletonGroup(
            skeleton=t.skeleton,
            rows=np.asarray(t.rows, np.int64),
            decisions=np.asarray(t.decisions, np.int64).reshape(len(t.rows), -1),
            extents=np.asarray(t.extents, np.int64).reshape(len(t.rows), -1),
        )
        for t in templates
    ]
    return sorted(groups, key=lambda g: -len(g.rows)), failures
