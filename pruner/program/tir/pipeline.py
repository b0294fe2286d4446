"""Count the copies of buffers that software pipelines of loops keep.

A statement of stage ``s`` runs ``s`` iterations after those of stage 0. A pipelined loop inside
counts as its prologue, body and epilogue (src/s_tir/transform/inject_software_pipeline.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.program.index.affine import plain
from pruner.program.nests import Mark
from pruner.program.tir.tree import Block, LoopNode, Tree, TreeNode

STAGES = "software_pipeline_stage"
ASYNC_STAGES = "software_pipeline_async_stages"
# of a pipelined loop: its blocks, and the programs that have it
_Statement = tuple[tuple[Block, ...], Mask | np.bool_]


def stages_of(loop: LoopNode) -> list[int] | None:
    """Return the stage of every statement in a loop, None without pipeline."""
    stages = loop.annotations.get(STAGES)
    return None if stages is None else [int(stage) for stage in stages]  # type: ignore[attr-defined]


def pipeline_fits(tree: Tree, loop: LoopNode) -> bool:
    """Return whether a pipeline names each statement's stage; true without pipeline."""
    stages = stages_of(loop)
    return stages is None or len(stages) == len(list(_statements(tree, loop)))


def buffer_versions(tree: Tree, loop: LoopNode, key: int) -> IntLike:
    """Return the copies of a buffer that the loop keeps (``ComputeBufferVersions``)."""
    stages = stages_of(loop)
    if stages is None:
        return 1
    fills, reads = np.full((), max(stages)), np.zeros((), np.int64)
    for stage, (blocks, present) in zip(stages, _statements(tree, loop), strict=False):
        if any(block.buffer == key for block in blocks):
            fills = np.minimum(fills, np.where(present, stage, fills))
        if any(block.loads_of(key) for block in blocks):
            reads = np.maximum(reads, np.where(present, stage, reads))
    # A copy filled in stage f and read in stage r lives r - f further iterations: one version each.
    return plain(np.asarray(reads - fills + 1))


def copies_ahead(tree: Tree) -> int:
    """Return iterations between an asynchronous copy and its last use; 0: none.

    Also 0 where rows of a copy are no whole vectors: they go through registers.
    """
    found = [0]
    for loop in tree.loops():
        stages = _asynchronous(loop)
        statements = zip(stages_of(loop) or (), _statements(tree, loop), strict=False)
        blocks = [b for stage, (some, _) in statements if stage in stages for b in some]
        if blocks and all(_copies_whole_vectors(tree, block) for block in blocks):
            found.append(max(stages_of(loop) or ()))
    return max(found)


def _copies_whole_vectors(tree: Tree, block: Block) -> bool:
    lane = next((x for x in tree.path(block) if x.mark is Mark.VECTORIZE), None)
    rows = [tree.buffers[key].shape[-1] for key in block.loads]
    # cp.async copies aligned vectors of 4, 8 or 16 bytes only.
    return lane is None or all(np.all(np.equal(np.mod(row, lane.extent), 0)) for row in rows)


def _asynchronous(loop: LoopNode) -> set[int]:
    return {int(stage) for stage in loop.annotations.get(ASYNC_STAGES, ())}  # type: ignore[attr-defined]


def waits_are_numbers(tree: Tree) -> Mask:
    """Return where the wait count of each pipeline reader is constant, [N].

    ``cp.async.wait_group`` takes a constant. Where the pipelined loop has fewer iterations than the
    loop that fills the pipeline, a reader of a stage before the last waits for a number that
    depends on the iteration: the code generator stops (``PopulateWaitCounts``).
    """
    out = np.ones(tree.num_programs, bool)
    for loop in tree.loops():
        stages = stages_of(loop) or []
        found = list(zip(stages, _statements(tree, loop), strict=False))
        made = [blocks for stage, (blocks, _) in found if stage in _asynchronous(loop)]
        copied = {block.buffer for blocks in made for block in blocks}
        for stage, (blocks, present) in found:
            reads = any(block.loads_of(key) for block in blocks for key in copied)
            if reads and stage < max(stages):
                out &= ~present | np.greater_equal(loop.extent, max(stages))
    return out


def _statements(tree: Tree, loop: LoopNode) -> Iterator[_Statement]:
    always = np.bool_(True)
    for child in loop.body:
        stages = stages_of(child) if isinstance(child, LoopNode) else None
        if stages is None or not isinstance(child, LoopNode):
            yield tuple(tree.blocks(child)), always
            continue
        inside = list(zip(stages, child.body, strict=False))
        last = max(stages)
        # The prologue runs the stages before the last, the epilogue those after the first; the body
        # is there only where the loop is longer than the pipeline.
        yield _blocks(tree, (x for s, x in inside if s < last)), always
        yield tuple(tree.blocks(child)), np.greater(child.extent, last)
        yield _blocks(tree, (x for s, x in inside if s > 0)), always


def _blocks(tree: Tree, nodes: Iterable[TreeNode]) -> tuple[Block, ...]:
    return tuple(block for node in nodes for block in tree.blocks(node))
