"""Inlining blocks (src/s_tir/schedule/primitive/compute_inline.cc)."""

from __future__ import annotations

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Const, Expr, Load, rewrite
from pruner.program.te.schedule import substitute_axes
from pruner.program.tir.tree import Block, Tree, remove


def compute_inline(tree: Tree, block: Block) -> None:
    """Consumers compute what they read of ``block`` themselves."""
    slots = _slots_of(block, block.indices)

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.stage != block.buffer:
            return node
        values: list[Expr] = [Const(0)] * len(block.iters)
        for dimension, slot in slots.items():
            values[slot] = node.indices[dimension]
        return substitute_axes(block.value, values)

    consumers = tree.consumers(block)
    if not consumers or block.init is not None:
        raise UnsupportedProgram("compute-inline", block.name)
    for consumer in consumers:
        consumer.value = rewrite(consumer.value, rule)
        consumer.list_reads()
    remove(block)


def can_inline(tree: Tree, block: Block) -> bool:
    """Whether TVM would inline the block into its consumers."""
    if block.init is not None or tree.buffers[block.buffer].is_param:
        return False
    try:
        _slots_of(block, block.indices)
    except UnsupportedProgram:
        return False
    return bool(tree.consumers(block))


def reverse_compute_inline(tree: Tree, block: Block) -> None:
    """The one producer of ``block`` stores the block's value instead of its own."""
    producers = tree.producers(block)
    if len(producers) != 1 or block.init is not None:
        raise UnsupportedProgram("reverse-compute-inline", block.name)
    producer = producers[0]
    loads = block.loads_of(producer.buffer)
    if producer.init is not None or len(set(loads)) != 1:
        raise UnsupportedProgram("reverse-compute-inline", block.name)
    slots = _slots_of(block, loads[0].indices)
    values: list[Expr] = [Const(0)] * len(block.iters)
    for dimension, slot in slots.items():
        values[slot] = producer.indices[dimension]

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node.stage == producer.buffer:
            return producer.value
        return node

    producer.value, old = rewrite(substitute_axes(block.value, values), rule), producer.buffer
    producer.indices = tuple(substitute_axes(index, values) for index in block.indices)
    producer.buffer = block.buffer
    producer.list_reads()
    assert old != producer.buffer
    remove(block)


def _slots_of(block: Block, indices: tuple[Expr, ...]) -> dict[int, int]:
    """Iterator by dimension; every iterator that is not of extent 1 must be one dimension."""
    out: dict[int, int] = {}
    for dimension, index in enumerate(indices):
        if isinstance(index, Axis) and index.slot not in out.values():
            out[dimension] = index.slot
        elif not isinstance(index, Const):
            raise UnsupportedProgram("inline-index", f"{block.name}: {index}")
    for slot, it in enumerate(block.iters):
        if it.extent != 1 and slot not in out.values():
            raise UnsupportedProgram("inline-index", f"{block.name}: iterator {slot} is free")
    return out
