"""Find programs whose padded results TVM proves to cover their reads.

Moving a block asks for a *stage pipeline*: its inputs were written before (region cover,
src/s_tir/schedule/state.cc). Until the epilogue goes into it, a result of tensor cores that cuts
padded rows off writes under a guard on a sum of the fused loop f of its store, such as ``f // 256 *
16 + f % 256 // 16 < 196``. Where no other loop moves the rows and f runs over the columns of one
fragment only, that sum is one quotient, ``f // 16``, and TVM finds no region for an image's indices
that divide it once more: ``ComputeAt`` of the operands then raises.
"""

from __future__ import annotations

import numpy as np

from pruner.arrays import Mask
from pruner.program.dag.expr import Axis, Binary, Expr, Load, walk
from pruner.program.index.regions import Region, relax
from pruner.program.nests import BLOCKS
from pruner.program.tir.tree import Block, Tree

_FRAGMENT = 16  # columns that lanes hold of a row


def stages_cover(tree: Tree) -> Mask:
    """Return where padded results' epilogues let TVM move their operands, [N]."""
    out = np.ones(tree.num_programs, bool)
    for block in tree.blocks():
        if isinstance(block.value, Load):  # a copy: nothing reads what it writes
            continue
        divided = [_slots(index) for index in block.indices if _divides(index)]
        for guard, _ in block.guards:
            rows = _slots(guard)
            if any(rows & slots for slots in divided):
                out &= ~_is_one_quotient(tree, block, rows)
    return out


def _is_one_quotient(tree: Tree, block: Block, rows: set[int]) -> Mask:
    """Return where only a loop of the block's own moves iterators ``rows``.

    Over one fragment's columns.
    """
    moving = {id(loop.var) for loop in tree.path(block) if loop.mark not in BLOCKS}
    whole, columns = np.ones(tree.num_programs, bool), np.ones(tree.num_programs)
    for slot, value in enumerate(tree.values(block)):
        region, extent = relax(Region(value, 0, 0), moving), block.iters[slot].extent
        # loops that are dealt out to threads overrun
        width = np.minimum(region.hi - region.lo + 1, extent)
        if slot in rows:
            whole &= np.equal(width, extent)
        else:
            columns = columns * width
    inner = sorted(rows)[1:-1]  # fragments of a warp, which loops outside of the fused one run over
    for slot in inner:
        whole &= np.equal(block.iters[slot].extent, 1)
    return whole & (columns == _FRAGMENT)


def _slots(expr: Expr) -> set[int]:
    return {node.slot for node in walk(expr) if isinstance(node, Axis)}


def _divides(index: Expr) -> bool:
    ops = ("div", "mod", "floordiv", "floormod")
    return any(isinstance(node, Binary) and node.op in ops for node in walk(index))
