"""Software pipelines of loops: which copies of a buffer they keep (``InjectSoftwarePipeline``).

An annotated loop names the stage of every statement in it; a statement of stage ``s`` runs ``s``
iterations after those of stage 0. A pipelined loop inside counts as three statements: its prologue
(stage 0 of the first iteration), its body and its epilogue
(src/s_tir/transform/inject_software_pipeline.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.program.index.affine import plain
from pruner.program.tir.tree import Block, LoopNode, Tree, TreeNode

STAGES = "software_pipeline_stage"
ASYNC_STAGES = "software_pipeline_async_stages"


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    """A statement of a pipelined loop: its blocks, and in which programs there is any of it."""

    blocks: tuple[Block, ...]
    present: Mask | np.bool_


def stages_of(loop: LoopNode) -> list[int] | None:
    """The stage of every statement in a loop, None where it has no pipeline."""
    stages = loop.annotations.get(STAGES)
    return None if stages is None else [int(stage) for stage in stages]  # type: ignore[attr-defined]


def pipeline_fits(tree: Tree, loop: LoopNode) -> bool:
    """A pipeline names the stage of every statement of its loop; true where there is none."""
    stages = stages_of(loop)
    return stages is None or len(stages) == len(list(_statements(tree, loop)))


def buffer_versions(tree: Tree, loop: LoopNode, key: int) -> IntLike:
    """Copies of a buffer that the loop keeps: from the stage that fills it to the last that reads
    it (``ComputeBufferVersions``)."""
    stages = stages_of(loop)
    if stages is None:
        return 1
    fills, reads = np.full((), max(stages)), np.zeros((), np.int64)
    for stage, found in zip(stages, _statements(tree, loop), strict=False):
        if any(block.buffer == key for block in found.blocks):
            fills = np.minimum(fills, np.where(found.present, stage, fills))
        if any(block.loads_of(key) for block in found.blocks):
            reads = np.maximum(reads, np.where(found.present, stage, reads))
    return plain(np.asarray(reads - fills + 1))


def copies_ahead(loops: Iterable[LoopNode]) -> int:
    """Iterations between an asynchronous copy and its last use; 0 where no loop has such copies."""
    found = [stages_of(loop) for loop in loops if ASYNC_STAGES in loop.annotations]
    return max((max(stages) for stages in found if stages), default=0)


def waits_are_numbers(tree: Tree) -> Mask:
    """Where TVM knows how many copies every reader of a pipeline may leave in flight, bool [N].

    ``cp.async.wait_group`` takes a constant. The iterations before the pipeline is full, as many as
    its last stage says, are a loop of their own. Where the pipelined loop has fewer, the copies in
    that loop have a guard, and a reader in it, of a stage before the last, waits for a number that
    depends on the iteration: the code generator stops (``PopulateWaitCounts``).
    """
    out = np.ones(tree.num_programs, bool)
    for loop in (node for node in tree.nodes() if isinstance(node, LoopNode)):
        stages = stages_of(loop)
        if stages is None or ASYNC_STAGES not in loop.annotations:
            continue
        asynchronous = {int(stage) for stage in loop.annotations[ASYNC_STAGES]}  # type: ignore[attr-defined]
        found = list(zip(stages, _statements(tree, loop), strict=False))
        copied = {b.buffer for stage, x in found if stage in asynchronous for b in x.blocks}
        for stage, statement in found:
            reads = any(block.loads_of(key) for block in statement.blocks for key in copied)
            if reads and stage < max(stages):
                out &= ~statement.present | np.greater_equal(loop.extent, max(stages))
    return out


def _statements(tree: Tree, loop: LoopNode) -> Iterator[_Statement]:
    always = np.bool_(True)
    for child in loop.body:
        stages = stages_of(child) if isinstance(child, LoopNode) else None
        if stages is None or not isinstance(child, LoopNode):
            yield _Statement(tuple(tree.blocks(child)), always)
            continue
        inside = list(zip(stages, child.body, strict=False))
        last = max(stages)
        yield _Statement(_blocks(tree, (x for s, x in inside if s < last)), always)
        yield _Statement(tuple(tree.blocks(child)), np.greater(child.extent, last))
        yield _Statement(_blocks(tree, (x for s, x in inside if s > 0)), always)


def _blocks(tree: Tree, nodes: Iterable[TreeNode]) -> tuple[Block, ...]:
    return tuple(block for node in nodes for block in tree.blocks(node))
