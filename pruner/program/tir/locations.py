"""Find a block's loops: ``CollectComputeLocation`` and ``SampleComputeLocation`` of TVM."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from pruner.arrays import IntLike, Ints, Mask
from pruner.program.index.affine import plain
from pruner.program.tir.primitives import can_inline, cut, is_data_parallel
from pruner.program.tir.tree import Block, LoopNode, Tree

# TVM's numbers in the decisions of traces.
INLINE, ROOT = -2, -1


def candidate_loops(tree: Tree, block: Block) -> list[LoopNode]:
    """Return the loops around the first consumer that hold all consumers."""
    return tree.common_path(tree.consumers(block))


_Offer = tuple[IntLike, Mask | np.bool_]  # location in each program, and where offered


def _offers(tree: Tree, loops: list[LoopNode]) -> list[_Offer]:
    """Return the offers of candidate loops: no unit, inner parallel or trailing reduction loops."""
    reducing = tree.reducing_in(loops)
    kinds = [is_data_parallel(loop, reducing) for loop in loops]
    # A reduction without a parallel loop inside is trailing: CollectComputeLocation drops it.
    leads = np.zeros((len(loops) + 1, tree.num_programs), bool)  # to a parallel loop
    for i in range(len(loops) - 1, -1, -1):
        leads[i] = leads[i + 1] | (~np.asarray(loops[i].absent) & kinds[i])
    below: Mask | np.bool_ = np.bool_(False)  # inside a reduction that is no unit loop
    closed: Mask | np.bool_ = np.bool_(False)  # and inside a parallel loop in there
    location: IntLike = 0
    out: list[_Offer] = []
    for i, (loop, parallel) in enumerate(zip(loops, kinds, strict=True)):
        if not leads[i].any():
            break
        exists = np.not_equal(loop.extent, 1)
        if parallel:
            closed = closed | (exists & below)
        else:
            below = below | exists
        out.append((location, exists & ~closed & leads[i]))
        # Locations count the loops that a program has, so an absent loop takes no number there.
        location = plain(location + 1 - np.asarray(loop.absent))
    return out


def allowed_locations(tree: Tree, block: Block) -> dict[int, Mask | np.bool_]:
    """Return where each location is offered: bool [N] by location (-2 inline, -1 stay)."""
    out: dict[int, Mask | np.bool_] = {}
    if can_inline(tree, block):
        out[INLINE] = np.bool_(True)
    out[ROOT] = np.bool_(True)
    for locations, offered in _offers(tree, candidate_loops(tree, block)):
        for location in np.unique(locations).tolist():
            here = offered & np.equal(locations, location)
            out[location] = out.get(location, np.bool_(False)) | here
    return out


def settle(
    tree: Tree, block: Block, wanted: Int64[np.ndarray, " program"]
) -> Int64[np.ndarray, " program"]:
    """Return the loop taken, by its place: as decided, or the last before it."""
    best = np.full(wanted.shape, ROOT)
    offers = _offers(tree, candidate_loops(tree, block))
    for place, (location, offered) in enumerate(offers):
        # SampleComputeLocation falls back to the last location that is not after the decision.
        best = np.where(offered & (location <= wanted), place, best)
    if can_inline(tree, block):
        return np.where(wanted <= INLINE, INLINE, best)
    return best


def alike(tree: Tree, block: Block, taken: Ints) -> Ints:
    """Return equal numbers where locations can share a tree, see :func:`shared`.

    Two neighbouring loops of a chain can share outside of the first reduction, from the first to
    the last, or inside the last: all else then has one place in all programs. Staying in place goes
    with the outermost loops directly behind.
    """
    loops = candidate_loops(tree, block)
    reducing = tree.reducing_in(loops)
    serial = [i for i, loop in enumerate(loops) if loop.var in reducing]
    borders = (serial[0], serial[-1] + 1) if serial else ()
    runs = list(range(len(loops)))
    for i, loop in enumerate(loops):
        before = loops[i - 1].body == [loop] if i else _is_neighbour(tree, block, loop)
        if _is_simple(loop) and i not in borders and before:
            runs[i] = runs[i - 1] if i else ROOT
    return np.array([*runs, INLINE, ROOT])[taken]  # from the end


def _is_simple(loop: LoopNode) -> bool:
    return not (loop.fused or loop.annotations or loop.mark or loop.unroll)


def _is_neighbour(tree: Tree, block: Block, loop: LoopNode) -> bool:
    path, body = tree.path(block), tree.root.body
    if not path or loop.parent is not tree.root:
        return False
    alone = all(len(x.body) == 1 and _is_simple(x) for x in path)
    return alone and body.index(loop) == body.index(path[0]) + 1


def shared(tree: Tree, block: Block, taken: Ints) -> LoopNode | int:
    """Return a loop, or a location without a loop, for :func:`alike` locations.

    A loop that is around the block in some programs and inside in others is cut in two halves, of
    which a program has one; none of them where the block stays in place.
    """
    first, last = int(taken.min()), int(taken.max())
    # All inline or all stay: no loop at all.
    if last < 0:
        return last
    loops = candidate_loops(tree, block)
    if first == last:
        return loops[last]
    places = range(first + 1, last + 1)
    return cut(tree, [loops[n] for n in places], [taken >= n for n in places])
