"""Reduce in two steps: ``rfactor`` of TVM's reduction.cc.

``RFactorBlockCreator`` is :class:`_Partial`: the factored loop becomes a spatial iterator, and the
reduction iterators that hold it become *derived*, expressions of new iterators for the other loops.
``WriteBackBlockCreator`` is :func:`_finish`: a reduction over the factored loop.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    made = _Partial(tree, block, loop, partial, factor_axis, combine).run(old)
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
    own = Load(block.buffer, block.indices, "")
    match block.value:
        case Binary(op=("add" | "mul" | "max" | "min"), a=Load(), b=_) as value:
            if value.a.stage == own.stage and value.a.indices == own.indices:  # type: ignore[union-attr]
                return value
    raise UnsupportedProgram("rfactor-update", block.name)


@dataclass(slots=True, eq=False)
class _Partial:
    """Make the block of partial results; its loops are the old block's."""

    tree: Tree
    block: Block
    loop: LoopNode
    buffer: Buffer
    axis: int
    combine: Binary

    def run(self, loops: list[LoopNode]) -> Block:
        old = self.block
        uses = [self.tree.uses(old, slot) for slot in range(len(old.iters))]
        values = self.tree.values(old)
        iters = [BlockIter("spatial", self.loop.extent)]  # CreateAdditionalIter comes first
        bindings = [Binding.of(self.loop.var)]
        places: list[int] = []
        split: list[int] = []
        for slot, it in enumerate(old.iters):
            touched = it.kind == "reduce" and self.loop.var in uses[slot]
            places.append(len(iters))
            # A touched iterator stays as an expression, because the body's indices still use it.
            iters.append(BlockIter("derived", it.extent) if touched else it)
            bindings.append(Binding(values[slot], uses[slot]))
            if touched:
                split.append(slot)
        # CreateNormalIters: a new iterator for every loop in the touched ones, each loop once
        stands: dict[LoopVar, int] = {}
        ids = {self.loop.var: self._stand_in(stands, 0)}
        for slot in split:
            for loop in loops:
                if loop.var in uses[slot] and loop.var not in ids:
                    ids[loop.var] = self._stand_in(stands, len(iters), loop)
                    iters.append(BlockIter("reduce", loop.extent))
                    bindings.append(Binding.of(loop.var))
        for slot in split:
            bindings[places[slot]] = Binding(
                renamed(values[slot], ids), {ids[v]: s for v, s in uses[slot].items()}
            )
        table = [Axis(place) for place in places]
        indices = tuple(substitute_axes(index, table) for index in old.indices)
        indices = (*indices[: self.axis], Axis(0), *indices[self.axis :])
        rest = substitute_axes(self.combine.b, table)
        # With every reduction loop factored an element has one value: no update, no init.
        reduces = any(it.kind == "reduce" for it in iters)
        own = Load(self.buffer.key, indices, self.buffer.dtype)
        value = Binary(self.combine.op, own, rest, self.buffer.dtype) if reduces else rest
        return Block(
            name=f"{old.name}_rf",
            iters=tuple(iters),
            bindings=bindings,
            buffer=self.buffer.key,
            indices=indices,
            value=value,
            init=old.init if reduces else None,
            reads=list(old.reads),
            annotations=dict(old.annotations),
            stands_for=stands,
        )

    def _stand_in(
        self, stands: dict[LoopVar, int], slot: int, loop: LoopNode | None = None
    ) -> LoopVar:
        source = (loop or self.loop).var
        var = LoopVar(f"v{source.name}", source.extent)
        stands[var] = slot
        return var


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
