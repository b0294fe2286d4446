"""Where a block may be computed (``CollectComputeLocation`` and ``SampleComputeLocation``)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from pruner.arrays import Mask
from pruner.errors import UnsupportedProgram
from pruner.program.tir.primitives import can_inline, is_data_parallel, reducing_variables
from pruner.program.tir.tree import Block, LoopNode, Tree

INLINE, ROOT = -2, -1


def candidate_loops(tree: Tree, block: Block) -> list[LoopNode]:
    """Loops around the first consumer that hold all consumers."""
    consumers = tree.consumers(block)
    if not consumers:
        return []
    paths = [tree.path(consumer) for consumer in consumers]
    out = []
    for level in zip(*paths, strict=False):
        if any(loop is not level[0] for loop in level):
            break
        out.append(level[0])
    return out


def allowed_locations(tree: Tree, block: Block) -> dict[int, Mask | np.bool_]:
    """Where each location (-2: inline, -1: stay, i: the i-th loop) is offered.

    Unit loops are left out, parallel loops inside reductions and trailing reductions too.
    """
    out: dict[int, Mask | np.bool_] = {}
    if can_inline(tree, block):
        out[INLINE] = np.bool_(True)
    out[ROOT] = np.bool_(True)
    loops = candidate_loops(tree, block)
    reducing = reducing_variables(tree, loops[0]) if loops else set()
    kinds = [is_data_parallel(loop, reducing) for loop in loops]
    last = max((i for i, parallel in enumerate(kinds) if parallel), default=-1)
    below: Mask | np.bool_ = np.bool_(False)  # inside a reduction that is no unit loop
    closed: Mask | np.bool_ = np.bool_(False)  # and inside a parallel loop in there
    for i, (loop, parallel) in enumerate(zip(loops, kinds, strict=True)):
        exists = np.not_equal(loop.extent, 1)
        if not parallel and i > last:
            break
        if parallel:
            closed = closed | (exists & below)
        else:
            below = below | exists
        out[i] = exists & ~closed
    return out


def settle(
    tree: Tree, block: Block, wanted: Int64[np.ndarray, " program"]
) -> Int64[np.ndarray, " program"]:
    """The location taken: the wanted one, or the last one offered before it."""
    best = np.full(wanted.shape, ROOT)
    allowed = allowed_locations(tree, block)
    for location, offered in sorted(allowed.items()):
        best = np.where(offered & (location <= wanted), location, best)
    if INLINE in allowed:
        return np.where(wanted <= INLINE, INLINE, best)
    return best


def at(tree: Tree, block: Block, location: int) -> LoopNode | int:
    """The loop of a location; ``INLINE`` and ``ROOT`` stand for themselves."""
    if location < 0:
        return location
    loops = candidate_loops(tree, block)
    if location >= len(loops):
        raise UnsupportedProgram("compute-location", f"{block.name}: {location}")
    return loops[location]
