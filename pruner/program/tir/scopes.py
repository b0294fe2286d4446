"""Find the loop that each buffer lives under, and its stored extents."""

from __future__ import annotations

import numpy as np

from pruner.program.index import affine as af
from pruner.program.index.affine import Affine
from pruner.program.index.regions import UNKNOWN_WIDTH, Region
from pruner.program.tir.regions import (
    clipped,
    guarded_regions_of,
    loops_between,
    shared_threads,
    union_all,
)
from pruner.program.tir.tree import LoopNode, Place, Tree


def buffer_scopes(tree: Tree) -> dict[int, Place]:
    """Return every written buffer's place, by key, in a finished tree.

    In order of first store; computed once a tree.
    """
    if not tree.places:
        written = dict.fromkeys(block.buffer for block in tree.blocks())
        tree.places.update((key, _place(tree, key)) for key in written)
    return tree.places


def _place(tree: Tree, key: int) -> Place:
    """Return the innermost loop around all accesses, and their box.

    The box is what one iteration of that loop touches.
    """
    buffer = tree.buffers[key]
    whole = [Region(Affine(), 0, extent - 1) for extent in buffer.shape]
    if buffer.is_param:  # the caller's memory, whole
        return Place(None, whole)
    users = [b for b in tree.blocks() if b.buffer == key or b.loads_of(key)]
    paths = [tree.path(block) for block in users]
    loop: LoopNode | None = None
    for level in zip(*paths, strict=False):
        if any(node is not level[0] for node in level):
            break
        loop = level[0]
    boxes = []
    for block in users:
        moving = loops_between(tree, block, loop)
        if loop is not None:
            # Threads that share the buffer fill it together, so their loops count as inside.
            moving |= shared_threads(tree, loop, buffer.scope)
        indices = [block.indices] if block.buffer == key else []
        indices += [load.indices for load in block.loads_of(key)]
        boxes += guarded_regions_of(tree, block, dict.fromkeys(indices), moving)
    box = zip(union_all(boxes), buffer.shape, strict=True)
    return Place(loop, [_known(tree, clipped(region, extent)) for region, extent in box])


def _known(tree: Tree, region: Region) -> Region:
    """Return the region; one uncertain element where its width is no number."""
    unknown = np.greater_equal(region.hi - region.lo, UNKNOWN_WIDTH)
    if not af.any_nonzero(unknown):
        return region
    # Refused later, not guessed (see `Tree.uncertain`).
    tree.uncertain = tree.uncertain | unknown
    return Region(region.start, region.lo, af.where(unknown, region.lo, region.hi))
