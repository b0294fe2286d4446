"""Reductions: their initialisation (src/s_tir/schedule/primitive/reduction.cc)."""

from __future__ import annotations

import numpy as np

from pruner.program.dag.expr import Axis, Expr
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Mark
from pruner.program.te.schedule import substitute_axes
from pruner.program.tir.tree import (
    Binding,
    Block,
    LoopNode,
    Node,
    Tree,
    insert,
    renamed,
    uniform,
)


def is_data_parallel(tree: Tree, loop: LoopNode) -> bool:
    """No reduction iterator, of all blocks below, moves with the loop (``GetLoopIterType``).

    TVM's bindings keep a unit loop, but not one that `fuse` made, even of one loop. Raises
    :class:`Diverges` where such a loop over a reduction is a unit loop for some candidates only.
    """
    reduces = any(
        it.kind == "reduce" and loop.var in tree.uses(block, slot)
        for block in tree.blocks(loop)
        for slot, it in enumerate(block.iters)
    )
    return not reduces or (loop.fused and bool(uniform(np.equal(loop.extent, 1))))


def reduces_over_threads(tree: Tree, block: Block) -> bool:
    """A reduction iterator is bound to threads."""
    threads = {x.var for x in tree.path(block) if x.is_bound and x.mark is not Mark.VTHREAD}
    return any(
        it.kind == "reduce" and tree.uses(block, slot).keys() & threads
        for slot, it in enumerate(block.iters)
    )


def decompose_reduction(tree: Tree, block: Block, loop: LoopNode) -> Block:
    """The block's initialisation as a block of its own, before ``loop``."""
    assert block.init is not None
    spatial = [i for i, it in enumerate(block.iters) if it.kind == "spatial"]
    used = {var for i in spatial for var in tree.uses(block, i)}
    path = tree.path(block)
    inner = path[path.index(loop) :]
    names: dict[LoopVar, LoopVar] = {}
    init = Block(
        name=block.name + "_init",
        iters=tuple(block.iters[i] for i in spatial),
        bindings=[],
        buffer=block.buffer,
        indices=_renumbered(block, spatial),
        value=block.init,
        annotations=dict(block.annotations),
    )
    nest: Node = init
    for old in reversed([x for x in inner if x.var in used]):
        names[old.var] = LoopVar(old.var.name + "_init", old.extent)
        outer = LoopNode(names[old.var], [nest], mark=old.mark, unroll=old.unroll)
        nest.parent = outer
        nest = outer
    for i in spatial:
        uses = {names.get(var, var): scale for var, scale in tree.uses(block, i).items()}
        value = renamed(tree.resolve(block.bindings[i].value), names)
        init.bindings.append(Binding(value, uses))
    parent = loop.parent
    assert parent is not None
    insert(parent, parent.body.index(loop), nest)
    block.init = None
    block.name += "_update"
    return init


def _renumbered(block: Block, spatial: list[int]) -> tuple[Expr, ...]:
    table = [Axis(spatial.index(i)) if i in spatial else Axis(-1) for i in range(len(block.iters))]
    return tuple(substitute_axes(index, table) for index in block.indices)
