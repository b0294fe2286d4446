"""Reduce in two steps: ``rfactor`` of TVM's reduction.cc.

``RFactorBlockCreator`` is :func:`_partial_block`: the factored loop becomes a spatial iterator, and
the reduction iterators that hold it become *derived*, expressions of new iterators for the other
loops. ``WriteBackBlockCreator`` is :func:`_finish`: a reduction over the factored loop.
"""

from __future__ import annotations

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Binary, Const, Expr, Load, substitute_axes
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer
from pruner.program.tir.primitives import is_data_parallel
from pruner.program.tir.tree import (
    Binding,
    Block,
    BlockIter,
    LoopNode,
    Tree,
    insert,
    nest,
    renamed,
    replace_child,
)


def rfactor(tree: Tree, block: Block, loop: LoopNode, factor_axis: int) -> Block:
    """Split a reduction into partial results along ``loop`` and their sum.

    ``C[i] += A[i, k]`` with loop ``f`` of ``k`` -> ``C.rf[i, f] += A``, ``C[i] += C.rf``; the
    returned block computes ``C.rf`` just before, ``block`` keeps its data-parallel loops.
    """
    old = tree.path(block)
    source = tree.buffers[block.buffer]
    rank = len(source.shape)
    if not -rank - 1 <= factor_axis <= rank:
        raise UnsupportedProgram("rfactor-axis", block.name)
    factor_axis += (rank + 1) * (factor_axis < 0)  # -1: behind the last
    shape = (*source.shape[:factor_axis], loop.extent, *source.shape[factor_axis:])
    partial = Buffer(len(tree.buffers), f"{source.name}.rf", source.dtype, shape, source.scope)
    tree.buffers.append(partial)
    # Taken before anything changes: an update of another form must leave the tree untouched.
    combine = _combination(block)
    made = _partial_block(tree, block, loop, partial, factor_axis, combine)
    # The partial block has loops of its own, so every variable is made anew.
    names = {x.var: LoopVar(x.var.name, x.extent) for x in old}
    made.bindings = [
        b if made.iters[i].kind == "derived" else tree.rebound(b, b.uses, names)
        for i, b in enumerate(made.bindings)
    ]
    around = [LoopNode(names[x.var], mark=x.mark, unroll=x.unroll) for x in old]
    reducing = tree.reducing_in(old)
    keep = [x for x in old if x is loop or is_data_parallel(x, reducing)]
    _finish(tree, block, loop, partial, factor_axis, combine)
    insert(tree.root, tree.root.body.index(old[0]), nest(around, [made]))
    replace_child(old[0], [nest(keep, [block])])
    return made


def _combination(block: Block) -> Binary:
    """Return the update ``self op rest``, with the element on the left."""
    match block.value:
        case Binary(op=("add" | "mul" | "max" | "min"), a=Load(stage=stage, indices=own)) as value:
            if stage == block.buffer and own == block.indices:
                return value
    raise UnsupportedProgram("rfactor-update", block.name)


def _partial_block(
    tree: Tree, old: Block, loop: LoopNode, buffer: Buffer, axis: int, combine: Binary
) -> Block:
    """Return the block of partial results; its loops are the old block's."""
    uses = [tree.uses(old, slot) for slot in range(len(old.iters))]
    values = tree.values(old)
    iters = [BlockIter("spatial", loop.extent)]  # CreateAdditionalIter comes first
    bindings = [Binding.of(loop.var)]
    places: list[int] = []
    split: list[int] = []
    for slot, it in enumerate(old.iters):
        touched = it.kind == "reduce" and loop.var in uses[slot]
        places.append(len(iters))
        # A touched iterator stays as an expression, because the body's indices still use it.
        iters.append(BlockIter("derived", it.extent) if touched else it)
        bindings.append(Binding(values[slot], uses[slot]))
        if touched:
            split.append(slot)
    # CreateNormalIters: a new iterator for every loop in the touched ones, each loop once
    stands: dict[LoopVar, int] = {}

    def stand_in(var: LoopVar, slot: int) -> LoopVar:
        made = LoopVar(f"v{var.name}", var.extent)
        stands[made] = slot
        return made

    ids = {loop.var: stand_in(loop.var, 0)}
    for slot in split:
        for other in tree.path(old):
            if other.var in uses[slot] and other.var not in ids:
                ids[other.var] = stand_in(other.var, len(iters))
                iters.append(BlockIter("reduce", other.extent))
                bindings.append(Binding.of(other.var))
    for slot in split:
        bindings[places[slot]] = Binding(
            renamed(values[slot], ids), {ids[v]: s for v, s in uses[slot].items()}
        )
    table = [Axis(place) for place in places]
    indices = tuple(substitute_axes(index, table) for index in old.indices)
    indices = (*indices[:axis], Axis(0), *indices[axis:])
    rest = substitute_axes(combine.b, table)
    # With every reduction loop factored an element has one value: no update, no init.
    reduces = any(it.kind == "reduce" for it in iters)
    own = Load(buffer.key, indices, buffer.dtype)
    return Block(
        name=f"{old.name}_rf",
        iters=tuple(iters),
        bindings=bindings,
        buffer=buffer.key,
        indices=indices,
        value=Binary(combine.op, own, rest, buffer.dtype) if reduces else rest,
        init=old.init if reduces else None,
        reads=list(old.reads),
        annotations=dict(old.annotations),
        stands_for=stands,
    )


def _finish(
    tree: Tree, block: Block, loop: LoopNode, partial: Buffer, axis: int, combine: Binary
) -> None:
    """Turn ``block`` into the sum of the partial results, over ``loop``."""
    spatial = [slot for slot, it in enumerate(block.iters) if it.kind == "spatial"]
    old = [tree.rebound(block.bindings[slot], tree.uses(block, slot), {}) for slot in spatial]
    table: list[Expr] = [Const(0)] * len(block.iters)
    for place, slot in enumerate(spatial):
        table[slot] = Axis(place + 1)
    # CreateAdditionalIter comes first here, too.
    block.iters = (BlockIter("reduce", loop.extent), *(block.iters[s] for s in spatial))
    block.bindings = [Binding.of(loop.var), *old]
    block.indices = tuple(substitute_axes(index, table) for index in block.indices)
    indices = (*block.indices[:axis], Axis(0), *block.indices[axis:])
    own = Load(block.buffer, block.indices, partial.dtype)
    source = Load(partial.key, indices, partial.dtype)
    block.value = Binary(combine.op, own, source, partial.dtype)
    block.reads = [partial.key]
