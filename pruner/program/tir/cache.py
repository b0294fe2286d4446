"""Staging buffers (src/s_tir/schedule/primitive/cache_read_write.cc)."""

from __future__ import annotations

from pruner.program.dag.expr import Axis, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer, Scope
from pruner.program.te.schedule import redirect_loads
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Node, Tree, insert


def cache_read(
    tree: Tree, block: Block, read_index: int, scope: str, consumers: list[Block]
) -> Block:
    """A copy of what ``block`` reads, in ``scope``; its consumers read the copy."""
    source = tree.buffers[block.reads[read_index]]
    cache = tree.new_buffer(f"{source.name}_{scope}", source, Scope.of(scope))
    copy = _copy_block(cache.name, source, cache)
    readers = list(dict.fromkeys([block, *consumers]))
    for reader in readers:
        reader.value = redirect_loads(reader.value, source.key, cache.key)
        reader.reads = [cache.key if key == source.key else key for key in reader.reads]
    first = min(_root_index(tree, reader) for reader in readers)
    insert(tree.root, first, _nest_of(copy))
    return copy


def cache_write(tree: Tree, block: Block, scope: str) -> Block:
    """``block`` writes a buffer in ``scope``; the block returned copies it to where it wrote."""
    target = tree.buffers[block.buffer]
    cache = tree.new_buffer(f"{target.name}_{scope}", target, Scope.of(scope))
    block.value = redirect_loads(block.value, target.key, cache.key)
    block.reads = [cache.key if key == target.key else key for key in block.reads]
    block.buffer = cache.key
    copy = _copy_block(cache.name, cache, target)
    insert(tree.root, _root_index(tree, block) + 1, _nest_of(copy))
    return copy


def _copy_block(name: str, source: Buffer, target: Buffer) -> Block:
    axes = tuple(Axis(d) for d in range(len(source.shape)))
    loops = [LoopVar(f"ax{d}", extent) for d, extent in enumerate(source.shape)]
    return Block(
        name=name,
        iters=tuple(BlockIter("spatial", extent) for extent in source.shape),
        bindings=[Binding(af.variable(var), {var: 1}) for var in loops],
        buffer=target.key,
        indices=axes,
        value=Load(source.key, axes, source.dtype),
        reads=[source.key],
    )


def _nest_of(block: Block) -> Node:
    nest: Node = block
    for binding in reversed(block.bindings):
        (var,) = binding.uses
        outer = LoopNode(var, [nest])
        nest.parent = outer
        nest = outer
    return nest


def _root_index(tree: Tree, block: Block) -> int:
    path = tree.path(block)
    return tree.root.body.index(path[0] if path else block)
