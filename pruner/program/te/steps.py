"""Schedule primitives as frozen values, and a reader of Ansor's steps.

Every tile length and unroll depth of a skeleton is a *slot*, its place in the decision vector.
``stage`` and ``iter`` count after the steps before, as in Ansor's log (docs/ansor-steps.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
