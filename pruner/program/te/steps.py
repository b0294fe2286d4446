"""Schedule primitives as frozen values, and a reader of Ansor's steps.

A skeleton is a tuple of primitives in which every tile length and the unroll depth is a *slot*, the
position of its value in the decision vector. ``stage`` and ``iter`` numbers refer to the state
after the steps before, as in Ansor's log (src/auto_scheduler/transform_step.cc;
docs/ansor-steps.md).
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
class Split:
    """``for i in E`` -> ``len(slots) + 1`` nested loops.

    ``inner_to_outer``: the slots are the inner lengths in order and the outermost loop gets
    ``ceil(E / product)``; otherwise they are the outer loops' counts.
    """

    stage: int
    iter: int
    slots: tuple[int, ...]
    inner_to_outer: bool


@dataclass(frozen=True, slots=True)
class FollowSplit:
    """Split like ``source``: its first ``num - 1`` lengths, the others multiplied."""

    stage: int
    iter: int
    source: int
    num: int


@dataclass(frozen=True, slots=True)
class FollowFusedSplit:
    """Split by the product over ``sources`` of their lengths at ``level``."""

    stage: int
    iter: int
    sources: tuple[int, ...]
    level: int
    by_factor: bool


@dataclass(frozen=True, slots=True)
class Reorder:
    """Loops of ``stage`` in the order ``order``."""

    stage: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fuse:
    """``for i: for j`` -> ``for ij`` over adjacent loops ``iters``."""

    stage: int
    iters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Mark a loop with an annotation of :data:`ANNOTATIONS`."""

    stage: int
    iter: int
    kind: str


@dataclass(frozen=True, slots=True)
class UnrollPragma:
    """Set ``auto_unroll_max_step`` under the loop to decision ``slot``."""

    stage: int
    iter: int
    slot: int


@dataclass(frozen=True, slots=True)
class ComputeAt:
    """Compute ``stage`` inside loop ``target_iter`` of ``target``."""

    stage: int
    target: int
    target_iter: int


@dataclass(frozen=True, slots=True)
class ComputeInline:
    """Replace loads of ``stage`` by its body."""

    stage: int


@dataclass(frozen=True, slots=True)
class ComputeRoot:
    """Compute ``stage`` in its own loop nest."""

    stage: int


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Insert a copy of ``stage`` in ``scope`` after it, read by ``readers``."""

    stage: int
    scope: str
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Move the computation of ``stage`` to a stage in ``scope`` before."""

    stage: int
    scope: str


@dataclass(frozen=True, slots=True)
class RFactor:
    """Turn reduction loop ``iter`` into axis ``factor_axis`` of a partial result."""

    stage: int
    iter: int
    factor_axis: int


@dataclass(frozen=True, slots=True)
class StorageAlign:
    """Pad a buffer's rows; changes addresses, not loops."""

    stage: int
    iter: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole program of MetaSchedule, in place of Ansor's steps.

    ``space`` names its design space, ``slots`` are its decisions: :mod:`pruner.program.replay`.
    """

    space: str
    slots: tuple[int, ...]


Primitive = (
    Split
    | FollowSplit
    | FollowFusedSplit
    | Reorder
    | Fuse
    | Annotate
    | UnrollPragma
    | ComputeAt
    | ComputeInline
    | ComputeRoot
    | CacheRead
    | CacheWrite
    | RFactor
    | StorageAlign
    | Trace
)


def parse_steps(steps: list[list[Any]]) -> tuple[tuple[Primitive, ...], list[int]]:
    """Read one record's step list; return its skeleton and decision vector.

    Raises `UnknownStep` for a tag outside Ansor's vocabulary (such as TLM's ``PPT``),
    `UnsupportedProgram` for a known step with fields that cannot be read.
    """
    primitives: list[Primitive] = []
    decisions: list[int] = []
    for number, step in enumerate(steps):
        try:
            primitives.append(_parse(step, decisions))
        except (IndexError, TypeError, ValueError) as error:
            raise UnsupportedProgram(
                "malformed-step", f"step {number} {step!r:.80}: {error}"
            ) from error
    return tuple(primitives), decisions


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


def _slots(values: list[int], decisions: list[int]) -> tuple[int, ...]:
    first = len(decisions)
    decisions.extend(int(v) for v in values)
    # Slots count up with the steps, so a decision vector is the log's numbers in order.
    return tuple(range(first, len(decisions)))


def _parse(step: list[Any], decisions: list[int]) -> Primitive:
    match step:
        case ["SP", stage, it, _extent, lengths, inner_to_outer]:
            # `skeleton` compares the logged extent; the split needs only its lengths.
            return Split(stage, it, _slots(lengths, decisions), _flag(inner_to_outer))
        case ["FSP", stage, it, source, num]:
            return FollowSplit(stage, it, source, num)
        case ["FFSP", stage, it, sources, level, by_factor]:
            return FollowFusedSplit(stage, it, tuple(sources), level, _flag(by_factor))
        case ["RE", stage, order]:
            return Reorder(stage, tuple(order))
        case ["FU", stage, iters]:
            return Fuse(stage, tuple(iters))
        case ["AN", stage, it, kind]:
            return Annotate(stage, it, ANNOTATIONS[kind])  # a number in the log, a name here
        case ["PR", stage, it, text]:
            if str(text).partition("$")[0] != UNROLL_PRAGMA:
                raise UnsupportedProgram("unknown-pragma", repr(text)[:80])
            return UnrollPragma(stage, it, _slots([unroll_depth(text)], decisions)[0])
        case ["CA", stage, target, it]:
            return ComputeAt(stage, target, it)
        case ["CI", stage]:
            return ComputeInline(stage)
        case ["CR", stage]:
            return ComputeRoot(stage)
        case ["CHR", stage, scope, readers]:
            return CacheRead(stage, scope, tuple(readers))
        case ["CHW", stage, scope]:
            return CacheWrite(stage, scope)
        case ["RF", stage, it, axis]:
            return RFactor(stage, it, axis)
        case ["SA", stage, it, _factor, _offset]:
            # Row padding is dropped: factor and offset change addresses only.
            return StorageAlign(stage, it)
        case ["MS", str(space), values]:
            return Trace(space, _slots(values, decisions))
        case _:
            raise UnknownStep("unknown-step", repr(step)[:80])
