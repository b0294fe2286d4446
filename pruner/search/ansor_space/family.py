"""Families of skeletons: one skeleton with some of its structural decisions left open.

Ansor does not only move tile sizes: it moves where a stage is computed, how many outer loops run in
parallel, and which inner loops are vectors. Each such place is an *open step* whose alternatives
are primitives; a family's decision vector is the skeleton's, followed by one column an open step
that counts its alternatives. All members have the same splits, so one space holds them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.te.apply import replay
from pruner.program.te.bounds import infer_bounds
from pruner.program.te.schedule import Attach, Loop, Schedule, StageState
from pruner.program.te.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Primitive,
    RFactor,
    Split,
    UnrollPragma,
)
from pruner.search.ansor_space.extents import is_gpu, num_slots

Rule = Literal["location", "annotation"]
Skeleton = tuple[Primitive, ...]
Choices = tuple[int, ...]
_BEFORE_ANNOTATIONS = (CacheRead, CacheWrite, RFactor, Split, ComputeAt)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """Step number `step` of the skeleton may be any of the alternatives; the first is its own."""

    step: int
    rule: Rule
    alternatives: tuple[Primitive, ...]


class Family:
    """The members of a skeleton: the combinations of alternatives that can be replayed."""

    def __init__(self, dag: ComputeDAG, skeleton: Skeleton) -> None:
        """Raises `UnsupportedProgram` where the engine cannot replay the skeleton itself."""
        self.dag, self.skeleton = dag, skeleton
        self.num_slots = num_slots(skeleton)
        _check(dag, skeleton)
        self.opens = tuple(_open_steps(dag, skeleton))
        self._works: dict[Choices, bool] = {}

    def member(self, choices: Choices) -> Skeleton:
        """The skeleton with alternative ``choices[i]`` of open step i; all 0 is the skeleton."""
        return _replaced(self.skeleton, *self._steps(choices))

    def _steps(self, choices: Choices) -> tuple[list[int], list[Primitive]]:
        """Numbers of the open steps, and what stands there."""
        chosen = [o.alternatives[c] for o, c in zip(self.opens, choices, strict=True)]
        return [o.step for o in self.opens], chosen

    def members(self, decisions: NDArray[np.int64]) -> Iterator[tuple[Choices, NDArray[np.int64]]]:
        """Choices present in decision vectors int64 [N, d + opens], and the rows that made them."""
        found, which = np.unique(decisions[:, self.num_slots :], axis=0, return_inverse=True)
        for number, choices in enumerate(found.tolist()):
            yield tuple(choices), np.flatnonzero(which.ravel() == number)

    def valid(self, decisions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows whose member can be replayed; the engine is asked once a member."""
        out = np.zeros(len(decisions), bool)
        for choices, rows in self.members(decisions):
            if choices not in self._works:
                self._works[choices] = _works(self.dag, self.skeleton, *self._steps(choices))
            out[rows] = self._works[choices]
        return out


def _replaced(skeleton: Skeleton, numbers: Sequence[int], steps: Sequence[Primitive]) -> Skeleton:
    """The skeleton with other steps; loop numbers behind another fusion depth move along."""
    out = list(skeleton)
    for number, new in sorted(zip(numbers, steps, strict=True), key=lambda pair: -pair[0]):
        old, out[number] = out[number], new
        if isinstance(new, Fuse) and isinstance(old, Fuse):
            by = len(old.iters) - len(new.iters)
            out[number + 1 :] = [_moved(step, new.stage, by) for step in out[number + 1 :]]
    return tuple(out)


def _moved(step: Primitive, stage: int, by: int) -> Primitive:
    """A later step on the loops of `stage` after `by` fewer of them were fused in front."""
    if isinstance(step, Annotate | UnrollPragma) and step.stage == stage and step.iter > 0:
        if step.iter + by < 1:
            raise UnsupportedProgram("bad-annotation", "a marked loop was fused away")
        return replace(step, iter=step.iter + by)
    if isinstance(step, Fuse) and step.stage == stage:
        if step.iters[0] + by < 1:
            raise UnsupportedProgram("bad-annotation", "a fused loop was fused away")
        return replace(step, iters=tuple(i + by for i in step.iters))
    return step


def _works(
    dag: ComputeDAG, skeleton: Skeleton, numbers: Sequence[int], steps: Sequence[Primitive]
) -> bool:
    """Whether the skeleton with other steps can be replayed."""
    try:
        _check(dag, _replaced(skeleton, numbers, steps))
    except UnsupportedProgram:
        return False
    return True


def _probe(skeleton: Skeleton) -> NDArray[np.int64]:
    return np.ones((1, num_slots(skeleton)), np.int64)


def _check(dag: ComputeDAG, skeleton: Skeleton) -> None:
    """Raises `UnsupportedProgram` for what cannot be: no attach point, a stage inside a vector."""
    schedule = replay(dag, skeleton, _probe(skeleton))
    infer_bounds(schedule)
    for stage in schedule.pool:
        if isinstance(stage.attach, Attach):
            target = schedule.pool[stage.attach.stage]
            outside = target.leaves[: target.leaves.index(stage.attach.loop) + 1]
            if any(target.marks.get(loop) == "vectorize" for loop in outside):
                raise UnsupportedProgram("bad-compute-at", f"{stage.name} inside a vector")


def _open_steps(dag: ComputeDAG, skeleton: Skeleton) -> Iterator[OpenStep]:
    gpu = is_gpu(skeleton)
    for number, step in enumerate(skeleton):
        rule: Rule = "annotation"
        others: list[Primitive] = []
        schedule = replay(dag, skeleton[:number], _probe(skeleton))
        if isinstance(step, ComputeAt):
            rule, others = "location", _locations(schedule, step, gpu=gpu)
        elif isinstance(step, Fuse) and _is_parallel(skeleton, number, step):
            others = _depths(schedule.at(step.stage), step)
        elif isinstance(step, Annotate) and step.kind == "vectorize" and not gpu:
            others = [replace(step, kind="none")]
        working = [s for s in others if s != step and _works(dag, skeleton, [number], [s])]
        if working:
            yield OpenStep(step=number, rule=rule, alternatives=(step, *working))


def _locations(schedule: Schedule, step: ComputeAt, *, gpu: bool) -> list[Primitive]:
    """Every loop of the target and around it; a tiled stage stays where it is.

    On a GPU the stages that move are those that a block fetches together, and they move between
    reduction loops only.
    """
    out: list[Primitive] = []
    if schedule.at(step.stage).relations:
        return out
    target: StageState = schedule.at(step.target)
    inside: Loop | None = None
    while True:
        position, attach = schedule.order.index(target.key), target.attach
        for number, loop in enumerate(target.leaves):
            if loop.kind == "reduce" or not gpu:
                out.append(ComputeAt(step.stage, position, number))
            if loop is inside:
                break
        if not isinstance(attach, Attach):
            return out
        target, inside = schedule.pool[attach.stage], attach.loop


def _is_parallel(skeleton: Skeleton, number: int, step: Fuse) -> bool:
    """A fusion of the outermost loops behind which stages are only annotated."""
    behind = skeleton[number + 1 :]
    parallel = Annotate(step.stage, 0, "parallel") in behind and step.iters[:1] == (0,)
    return parallel and not any(isinstance(s, _BEFORE_ANNOTATIONS) for s in behind)


def _depths(stage: StageState, step: Fuse) -> list[Primitive]:
    """Fusions of 1, 2 ... of the outermost spatial loops."""
    kinds = [loop.kind for loop in stage.leaves]
    most = kinds.index("reduce") if "reduce" in kinds else len(kinds)
    return [Fuse(step.stage, tuple(range(depth))) for depth in range(1, most + 1)]
