"""Compute shared memory of N GPU programs as TVM's check allocates it.

A software pipeline keeps several copies of a buffer: a statement of stage ``s`` runs ``s``
iterations after those of stage 0, and a pipelined loop inside counts as its prologue, body and
epilogue (src/s_tir/transform/inject_software_pipeline.cc). Static buffers are summed up. Dynamic
buffers share one allocation: ``StorageRewrite`` (src/tirx/transform/storage_rewrite.cc) gives a
buffer the memory of a free buffer, ``MergeSharedMemoryAllocations`` (src/s_tir/transform) also that
of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike, Ints, Mask, dtype_bytes
from pruner.errors import UnsupportedProgram
from pruner.program.index.affine import plain
from pruner.program.nests import Buffer, Mark, Scope
from pruner.program.tir.layouts import aligned_elements
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.tree import Block, LoopNode, Place, Tree, TreeNode

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


_MATCH_RANGE = 16  # a free buffer may be this many times too large or too small


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A buffer in shared memory: bytes [N]; blocks of first store and last use."""

    buffer: Buffer
    size: Ints
    first: int
    last: int


def shared_bytes(tree: Tree) -> dict[TreeNode, tuple[Ints, Ints]]:
    """Return static and dynamic bytes by kernel; raise `UnsupportedProgram` if unplanned."""
    kernels: dict[LoopNode, list[_Staged]] = {}
    blocks = list(tree.blocks())
    for key, place in buffer_scopes(tree).items():
        if tree.buffers[key].scope is Scope.SHARED and place.loop is not None:
            # A kernel is a child of the root: the outermost loop around the buffer's place.
            kernel = (*tree.path(place.loop), place.loop)[0]
            kernels.setdefault(kernel, []).append(_staged(tree, key, place, blocks))
    out: dict[TreeNode, tuple[Ints, Ints]] = {}
    for kernel, found in kernels.items():
        nothing = np.zeros(tree.num_programs, np.int64)
        static = sum((x.size for x in found if not x.buffer.is_dynamic), nothing)
        dynamic = _merged([x for x in found if x.buffer.is_dynamic], tree.num_programs)
        out[kernel] = static, dynamic
    return out


def dynamic_bytes(tree: Tree) -> Ints | None:
    """Return bytes of shared memory [N], None without dynamic buffers."""
    if not any(buffer.is_dynamic for buffer in tree.buffers):
        return None
    found = shared_bytes(tree).values()
    return np.max([static + dynamic for static, dynamic in found], axis=0) if found else None


def _staged(tree: Tree, key: int, place: Place, blocks: list[Block]) -> _Staged:
    assert place.loop is not None
    buffer = tree.buffers[key]
    users = [n for n, b in enumerate(blocks) if b.buffer == key or b.loads_of(key)]
    writer = next(b for b in blocks if b.buffer == key)
    # Only the box of one iteration of the loop is allocated (CompactBufferAllocation).
    extents = [region.hi - region.lo + 1 for region in place.box]
    # A pipelined buffer is kept several times (see `pipeline`).
    versions = buffer_versions(tree, place.loop, key)
    size = dtype_bytes(buffer.dtype) * versions * aligned_elements(writer, extents)
    sizes = np.broadcast_to(np.asanyarray(size, np.int64), tree.num_programs)
    return _Staged(buffer, sizes, users[0], users[-1])


def _merged(buffers: list[_Staged], num: int) -> Ints:
    """Return bytes of the dynamic allocation [N]: operands, then results."""
    # Operands are first written before any buffer's last use: all of them are alive at once.
    operands = [x for x in buffers if x.first <= min((y.last for y in buffers), default=0)]
    later = [x for x in buffers if x not in operands]
    total = sum((x.size for x in operands), np.zeros(num, np.int64))
    if not later:
        return total
    if len(later) > 1 or len(operands) > 2:
        raise UnsupportedProgram("shared-memory", "more buffers than operands and results")
    return total + _beyond(operands, later[0])


def _beyond(operands: list[_Staged], results: _Staged) -> Ints:
    """Return bytes that results need beyond the operands they lie over [N].

    Both passes search the least fitting free buffer. Else the first lets the largest smaller one of
    the type grow, and the second takes smaller ones together, largest first.
    """
    size = results.size
    sizes = np.stack([x.size for x in operands])
    same = np.array([x.buffer.dtype == results.buffer.dtype for x in operands])[:, None]
    large = ((sizes >= size) & (sizes <= _MATCH_RANGE * size)).any(axis=0)
    smaller = np.where(sizes < size, sizes, 0)
    # In bits, as storage_rewrite.cc compares: a truncated division by 16 of the size.
    enough = same & (8 * smaller >= 8 * size // _MATCH_RANGE)
    grown = np.where(enough, smaller, 0).max(axis=0)
    largest = smaller.max(axis=0)
    together = np.where(largest >= size, largest, smaller.sum(axis=0))
    lies_over = np.where(grown > 0, grown, np.minimum(together, size))
    return np.where(large, 0, size - lies_over)
