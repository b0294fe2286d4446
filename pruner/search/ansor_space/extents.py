"""Which splits of a skeleton tile a whole axis, and how long that axis is."""

from __future__ import annotations

import numpy as np

from pruner.arrays import IntLike
from pruner.program.dag.dag import ComputeDAG
from pruner.program.te.apply import replay
from pruner.program.te.schedule import FuseRelation, Loop, StageState
from pruner.program.te.steps import Annotate, Primitive, Split, UnrollPragma


def num_slots(skeleton: tuple[Primitive, ...]) -> int:
    """Length of the skeleton's decision vectors."""
    used = [slot for step in skeleton if isinstance(step, Split) for slot in step.slots]
    used += [step.slot for step in skeleton if isinstance(step, UnrollPragma)]
    return max(used, default=-1) + 1


def is_gpu(skeleton: tuple[Primitive, ...]) -> bool:
    """Some loop is bound to threads."""
    return any(isinstance(step, Annotate) and "Idx" in step.kind for step in skeleton)


def split_extents(dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> dict[tuple[int, ...], int]:
    """Extent by slots of every split that divides a whole axis, or several that were fused.

    Other splits take what earlier decisions left over: the vector lengths of cooperative fetches.

    Raises:
        UnsupportedProgram: a primitive refers to stages or loops that do not exist.
    """
    ones = np.ones((1, num_slots(skeleton)), np.int64)
    found = {}
    for number, step in enumerate(skeleton):
        if isinstance(step, Split):
            schedule = replay(dag, skeleton[:number], ones)
            stage = schedule.at(step.stage)
            extent = _whole(stage, stage.leaves[step.iter])
            if extent is not None and stage.attach == "root":
                found[step.slots] = extent
    return found


def _whole(stage: StageState, loop: Loop) -> int | None:
    """Iterations of a loop that no split made; None of one that came from a split."""
    if loop in stage.axes or loop in stage.reduce:
        return _number(loop.extent)
    for relation in stage.relations:
        if isinstance(relation, FuseRelation) and relation.fused is loop:
            parts = [_whole(stage, part) for part in (relation.outer, relation.inner)]
            return None if None in parts else int(np.prod(np.array(parts, np.int64)))
    return None


def _number(extent: IntLike) -> int:
    return int(np.ravel(np.asarray(extent))[0])
