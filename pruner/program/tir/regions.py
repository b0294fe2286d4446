"""Compute the regions that blocks read and write, relaxed over loops, and buffers' boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pruner.arrays import IntLike
from pruner.program.dag.expr import Axis, Binary, Const, Expr, slots_of, walk
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Truth
from pruner.program.index.regions import UNKNOWN_WIDTH, Region, evaluate_region, relax, union
from pruner.program.nests import Scope, thread_rank
from pruner.program.tir.tree import Block, LoopNode, Place, Tree, Uses


def shared_threads(tree: Tree, loop: LoopNode, scope: Scope) -> set[LoopVar]:
    """Return variables of threads at or above ``loop`` that share the scope's buffers."""
    out = set()
    for outer in [*tree.path(loop), loop]:
        thread = thread_rank(outer.mark)
        # Threads (rank 1) share shared memory (1), but not local memory (3).
        if thread is not None and Scope.GLOBAL < scope <= thread:
            out.add(outer.var)
    return out


def loops_between(tree: Tree, block: Block, above: LoopNode | None) -> set[LoopVar]:
    """Return loop variables below ``above`` (None: all), around and in ``block``."""
    path = tree.path(block)
    start = path.index(above) + 1 if above is not None else 0
    # The loops inside a blockized nest move with every run of the block.
    return {*(loop.var for loop in path[start:]), *block.inner}


def region_of(
    tree: Tree, block: Block, indices: Sequence[Expr], moving: set[LoopVar]
) -> list[Region]:
    """Return the box of ``indices`` while the variables ``moving`` run."""
    domains = [relax(Region(value, 0, 0), moving, partly=True) for value in tree.values(block)]
    return [evaluate_region(index, domains) for index in indices]


def union_all(boxes: Iterable[list[Region]]) -> list[Region]:
    """Return the smallest box around all boxes, dimension by dimension."""
    return [union(list(dimension)) for dimension in zip(*boxes, strict=True)]


def index_uses(tree: Tree, block: Block, index: Expr) -> Uses:
    """Return the variables (also unit) with factors, 0 where divided; do not change it."""
    match index:
        case Axis(slot=slot):
            return tree.uses(block, slot)
        case (
            Binary(op="mul", a=a, b=Const(value=int(scale)))
            | Binary(op="mul", a=Const(value=int(scale)), b=a)
        ):
            return {v: s * scale for v, s in index_uses(tree, block, a).items()}
        case Binary(op=("add" | "sub") as op, a=a, b=b):
            out = dict(index_uses(tree, block, a))
            sign = 1 if op == "add" else -1
            for v, s in index_uses(tree, block, b).items():
                out[v] = out.get(v, 0) + sign * s
            return out
        case _:
            slots = [node.slot for node in walk(index) if isinstance(node, Axis)]
            return {v: 0 for slot in slots for v in tree.uses(block, slot)}


def clipped(region: Region, extent: IntLike) -> Region:
    """Cut the region to ``[0, extent)`` where its start is a number (``BlockVarDomainInfo``)."""
    fixed, base = af.is_constant(region.start), region.start.base
    # A symbolic start cannot be compared with 0: such a region is left as it is.
    lo = af.where(fixed, np.maximum(region.lo, -base), region.lo)
    hi = af.where(fixed, np.minimum(region.hi, extent - 1 - base), region.hi)
    return Region(region.start, af.plain(lo), af.plain(hi))


def partly_moving(tree: Tree, block: Block, indices: Sequence[Expr], moving: set[LoopVar]) -> Truth:
    """Return where an index divides a sum that moves only in part.

    TVM's interval arithmetic then may give loops whose extents are no numbers. It is exact where
    the quotient is one value (``(3 i + j) div 3`` where j moves) or starts from a number, as
    remainders do then; of a fused loop's iterators the first is the quotient.
    """
    out: Truth = np.bool_(False)
    slots = set[int]().union(*map(slots_of, indices))
    derived = [slot for slot, it in enumerate(block.iters) if it.kind == "derived"]
    for slot in slots.intersection(derived):
        runs: Truth = np.bool_(False)
        stands: Truth = np.bool_(False)
        for var, scale in tree.uses(block, slot).items():
            # Only divided variables make the trouble, and a unit loop divides exactly.
            divided = np.equal(scale, 0) & np.greater(var.extent, 1)
            runs = runs | (divided & (var in moving))
            stands = stands | (divided & (var not in moving))
        if af.any_nonzero(runs & stands):
            region = relax(Region(tree.values(block)[slot], 0, 0), moving, partly=True)
            several = np.greater(region.hi, region.lo) | (slot != derived[0])
            out = out | (runs & stands & several & af.fails(af.is_constant(region.start)))
    return out


def start_of(region: Region) -> af.Affine:
    """Return the first value of a region."""
    return af.add(region.start, af.const(region.lo))


def buffer_scopes(tree: Tree) -> dict[int, Place]:
    """Return every written buffer's place by key, in order of first store; cached."""
    if not tree.places:
        written = dict.fromkeys(block.buffer for block in tree.blocks())
        tree.places.update((key, _place(tree, key)) for key in written)
    return tree.places


def _place(tree: Tree, key: int) -> Place:
    """Return the innermost loop around all accesses, and the box of one iteration."""
    buffer = tree.buffers[key]
    whole = [Region(Affine(), 0, extent - 1) for extent in buffer.shape]
    if buffer.is_param:  # the caller's memory, whole
        return Place(None, whole)
    users = [b for b in tree.blocks() if b.buffer == key or b.loads_of(key)]
    loop = next(reversed(tree.common_path(users)), None)
    boxes = []
    for block in users:
        moving = loops_between(tree, block, loop)
        if loop is not None:
            # Threads that share the buffer fill it together, so their loops count as inside.
            moving |= shared_threads(tree, loop, buffer.scope)
        indices = [block.indices] if block.buffer == key else []
        indices += [load.indices for load in block.loads_of(key)]
        # A guard keeps loops that run whole in range, whatever their parts overrun.
        values, whole_loops = tree.values_above(block, moving)
        domains = [relax(Region(v, 0, 0), moving | whole_loops, partly=True) for v in values]
        boxes += [[evaluate_region(i, domains) for i in one] for one in dict.fromkeys(indices)]
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
