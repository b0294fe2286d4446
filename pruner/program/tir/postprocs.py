"""MetaSchedule's postprocessors that change the program (src/s_tir/meta_schedule/postproc)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike
from pruner.errors import UnsupportedProgram
from pruner.program.index import affine as af
from pruner.program.nests import BLOCKS, THREADS, Mark
from pruner.program.tir.primitives import (
    bind,
    decompose_reduction,
    is_data_parallel,
    reduces_over_threads,
    split,
)
from pruner.program.tir.tree import Block, Tree
from pruner.program.tir.vectors import widest_bytes

_MAX_VECTOR_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A cooperative fetch to rewrite: ``lanes`` per thread, and repeated thread loops."""

    block: Block
    lanes: IntLike
    threads_x: IntLike
    threads_y: IntLike | None


def rewrite_cooperative_fetch(tree: Tree, fetch: Fetch) -> None:
    """Deal the fetch's last loop out to the block's threads, ``lanes`` elements each."""
    fused = tree.path(fetch.block)[-1]
    # Lanes that do not divide the loop would need a guard inside a vector: then none.
    lanes = af.where(np.equal(np.mod(fused.extent, fetch.lanes), 0), fetch.lanes, 1)
    # RewriteCooperativeFetch gives up vectors of 64-bit types, which VerifyGPUCode rejects.
    if widest_bytes(tree, fetch.block) > _MAX_VECTOR_ELEMENT_BYTES:
        lanes = 1
    threads = [fetch.threads_x] if fetch.threads_y is None else [fetch.threads_y, fetch.threads_x]
    made = split(tree, fused, [None, *threads, lanes])
    made[-1].mark = Mark.VECTORIZE
    bind(made[-2], "threadIdx.x")
    if fetch.threads_y is not None:
        bind(made[-3], "threadIdx.y")


def require_bound(tree: Tree) -> None:
    """Raise `UnsupportedProgram` unless every block is under block and thread indices."""
    for block in tree.blocks():
        marks = {loop.mark for loop in tree.path(block)}
        if marks.isdisjoint(BLOCKS) or marks.isdisjoint(THREADS):
            raise UnsupportedProgram("unbound-block", block.name)


def rewrite_reduction_blocks(tree: Tree) -> None:
    """Initialise reductions before their outermost loop, unless threads reduce together."""
    for block in list(tree.blocks()):
        # A reduction across threads keeps its init: LowerCrossThreadReduction makes one of its own.
        if block.init is None or reduces_over_threads(tree, block):
            continue
        path = tree.path(block)
        reducing = tree.reducing_in(path)
        point = next((loop for loop in path if not is_data_parallel(loop, reducing)), None)
        if point is not None:
            decompose_reduction(tree, block, point)
