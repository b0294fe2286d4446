"""The vocabulary of schedule steps, and a check of their fields.

Ansor's steps of v0.6, and ``MS``. Meaning and legality of a step are checked in `pruner.program`.
Here a step only has to be of a listed kind, with the right number and type of fields and with
extents that could be real.

A program of MetaSchedule is one step of its own kind: ``["MS", space, decisions]`` names the design
space (``<root>/design_spaces/<space>.json``, see :mod:`pruner.program.tir.saved`) and gives its
sampling decisions in the order of the trace: all factors of ``sample_perfect_tile``, the index of
``sample_categorical``, the location of ``sample_compute_location`` (-1: the root, -2: inlined).
"""

from math import inf, prod
from typing import Any

import orjson

from pruner.data import limits
from pruner.data.quarantine import MalformedError, Reason
from pruner.data.workload import MAX_EXTENT

_DIGITS = b"0123456789"
TRACE = "MS"  # the only step of a program of MetaSchedule
INLINED = -2  # the smallest decision: a location

# Fields after the tag: i = index or flag, e = extent (0: not inferred), E = list of extents,
# I = list of indices, s = text, D = list of sampling decisions.
STEP_FIELDS: dict[str, str] = {
    "AN": "iii",  # annotate: stage, iterator, kind
    "CA": "iii",  # compute_at: stage, target stage, target iterator
    "CHR": "isI",  # cache_read: stage, scope, reader stages
    "CHW": "is",  # cache_write: stage, scope
    "CI": "i",  # compute_inline: stage
    "CR": "i",  # compute_root: stage
    "FFSP": "iiIii",  # follow_fused_split: stage, iterator, source steps, level, factor or nparts
    "FSP": "iiii",  # follow_split: stage, iterator, source step, number of splits
    "FU": "iI",  # fuse: stage, iterators
    "MS": "sD",  # MetaSchedule's trace: design space, decisions
    "PR": "iis",  # pragma: stage, iterator, text
    "RE": "iI",  # reorder: stage, order
    "RF": "iii",  # rfactor: stage, iterator, factor iterator
    "SA": "iiii",  # storage_align: stage, iterator, factor, offset
    "SP": "iieEi",  # split: stage, iterator, extent, lengths, inner to outer
}


def is_trace(steps: Any) -> bool:
    """Return whether steps are a program of MetaSchedule."""
    return bool(steps) and steps[0][0] == TRACE


class StepChecker:
    """Checks the steps of records, fast for repeated shapes.

    Two step lists have the same *structure* when their JSON is equal after deleting all digits and
    their tags are equal: same steps, same number and type of fields, same list lengths, no new
    sign, point or quote. Only numbers can differ then, so only split extents and the decisions of
    traces need another look.
    Tuning logs have one or two structures a task, which makes this cheap.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, list[str], list[int], bool]] = {}
        self._count = 0

    def check(self, steps: Any) -> tuple[bytes, int]:
        """Return (canonical JSON, structure's number); raises MalformedError for other steps."""
        try:
            text = orjson.dumps(steps)
        except TypeError as error:  # nested without end
            raise MalformedError(Reason.BAD_STEP, str(error)[:80]) from error
        # With digits deleted an empty list would look like a list of one number: mark it first.
        marked = text.replace(b"[]", b"[!]") if b"[]" in text else text
        key = marked.translate(None, _DIGITS)
        known = self._known.get(key)
        if known is None or [step[0] for step in steps] != known[1]:
            return text, self._learn(steps, key)
        structure, _, splits, has_trace = known
        if has_trace:  # locations may be negative; sizes are not compared
            _check_decisions(steps)
        for position in splits:
            step = steps[position]
            # No sign survived the comparison, so a positive product means positive factors.
            if not (step[3] <= MAX_EXTENT and 0 < prod(step[4]) <= MAX_EXTENT):
                raise _malformed(Reason.ABSURD_EXTENT, position, step)
        return text, structure

    def _learn(self, steps: Any, key: bytes) -> int:
        """Check the first record of a structure fully; cache the structure."""
        if not isinstance(steps, list):
            raise MalformedError(Reason.BAD_FIELD, "the steps are not a list")
        if len(steps) > limits.MAX_STEPS:
            detail = f"{len(steps)} steps, more than {limits.MAX_STEPS}"
            raise MalformedError(Reason.BAD_STEP, detail)
        for position, step in enumerate(steps):
            _check_step(position, step)
        tags = [step[0] for step in steps]
        has_trace = TRACE in tags
        if has_trace:
            _check_decisions(steps)
        splits = [position for position, tag in enumerate(tags) if tag == "SP"]
        loops = sum(len(steps[position][4]) for position in splits)
        if loops > limits.MAX_SPLIT_LOOPS:
            detail = f"splits into {loops} loops, more than {limits.MAX_SPLIT_LOOPS}"
            raise MalformedError(Reason.BAD_STEP, detail)
        structure, self._count = self._count, self._count + 1
        if structure < limits.MAX_STRUCTURES:
            self._known[key] = (structure, tags, splits, has_trace)
        return structure


def _check_step(position: int, step: Any) -> None:
    if not isinstance(step, list) or not step or not isinstance(step[0], str):
        raise MalformedError(Reason.BAD_STEP, f"step {position} is not a tagged list")
    fields = STEP_FIELDS.get(step[0])
    if fields is None:
        raise MalformedError(Reason.UNKNOWN_STEP, f"step {position}: {step[0][:40]!r}")
    if len(step) != len(fields) + 1:
        detail = f"step {position}: {step[0]} has {len(step) - 1} fields, not {len(fields)}"
        raise MalformedError(Reason.BAD_STEP, detail)
    for kind, value in zip(fields, step[1:], strict=True):
        if kind in "eE":
            _check_extent(position, step, kind, value)
        elif not _fits(kind, value):
            raise _malformed(Reason.BAD_STEP, position, step)


def _check_extent(position: int, step: list[Any], kind: str, value: Any) -> None:
    values = value if kind == "E" else [value]
    if not isinstance(values, list) or not 0 < len(values) <= limits.MAX_LENGTHS:
        raise _malformed(Reason.BAD_STEP, position, step)
    for number in values:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _malformed(Reason.BAD_STEP, position, step)
        if not (0 < number <= MAX_EXTENT or (number == 0 and kind == "e")):
            raise _malformed(Reason.ABSURD_EXTENT, position, step)
        if isinstance(number, float):
            raise _malformed(Reason.BAD_STEP, position, step)
    if prod(values) > MAX_EXTENT:
        raise _malformed(Reason.ABSURD_EXTENT, position, step)


def _check_decisions(steps: list[list[Any]]) -> None:
    for position, step in enumerate(steps):
        if step[0] == TRACE and step[2]:
            if len(step[2]) > limits.MAX_DECISIONS:
                detail = f"{len(step[2])} decisions, more than {limits.MAX_DECISIONS}"
                raise MalformedError(Reason.BAD_STEP, detail)
            if min(step[2]) < INLINED or max(step[2]) > MAX_EXTENT:
                raise _malformed(Reason.ABSURD_EXTENT, position, step)


def _fits(kind: str, value: Any) -> bool:
    if kind == "s":
        return isinstance(value, str)
    values = value if kind in "ID" else [value]
    least = -inf if kind == "D" else 0  # decisions: see `_check_decisions`
    return isinstance(values, list) and all(
        type(number) is int and least <= number for number in values
    )


def _malformed(reason: Reason, position: int, step: list[Any]) -> MalformedError:
    return MalformedError(reason, f"step {position}: {repr(step)[:120]}")
