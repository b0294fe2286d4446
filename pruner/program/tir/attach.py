"""Moving blocks under loops (src/s_tir/schedule/primitive/compute_at.cc).

The moved block gets new loops that cover what its consumers read there (compute_at) or what its
producers write there (reverse_compute_at).
"""

from __future__ import annotations

import numpy as np

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Const, Expr
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.regions import UNKNOWN_WIDTH, Region
from pruner.program.tir.regions import (
    clipped,
    index_uses,
    loops_between,
    partly_moving,
    region_of,
    shared_threads,
    start_of,
    union_all,
)
from pruner.program.tir.tree import (
    Binding,
    Block,
    LoopNode,
    Node,
    Tree,
    Uses,
    insert,
    plain,
    remove,
)

_Required = list[tuple[Region, Uses]]


def compute_at(tree: Tree, block: Block, loop: LoopNode) -> None:
    """``block`` under ``loop``, before the first subtree that reads what it writes."""
    below = set(tree.blocks(loop))
    consumers = [b for b in tree.consumers(block) if b in below]
    if not consumers or len(consumers) < len(tree.consumers(block)):
        raise UnsupportedProgram("compute-at-consumers", block.name)
    scope = tree.buffers[block.buffer].scope
    boxes, uses = [], []
    for consumer in consumers:
        moving = loops_between(tree, consumer, loop) | shared_threads(tree, loop, scope)
        for load in consumer.loads_of(block.buffer):
            tree.uncertain = tree.uncertain | partly_moving(tree, consumer, load.indices, moving)
            boxes.append(region_of(tree, consumer, load.indices, moving))
            uses.append([index_uses(tree, consumer, i) for i in load.indices])
    required = _with_uses(tree, union_all(boxes), uses, loop)
    place = min(_child_index(tree, loop, consumer) for consumer in consumers)
    _move(tree, block, loop, place, _iter_domains(block, block.indices, required))


def reverse_compute_at(tree: Tree, block: Block, loop: LoopNode) -> None:
    """``block`` under ``loop``, after the last subtree that writes what it reads."""
    below = set(tree.blocks(loop))
    producers = [b for b in tree.producers(block) if b in below]
    if not producers:
        raise UnsupportedProgram("reverse-compute-at-producers", block.name)
    domains: dict[int, tuple[Region, Uses]] = {}
    for producer in producers:
        moving = loops_between(tree, producer, loop)
        box = region_of(tree, producer, producer.indices, moving)
        uses = [[index_uses(tree, producer, i) for i in producer.indices]]
        loads = block.loads_of(producer.buffer)
        if len(loads) != 1:
            raise UnsupportedProgram("reverse-compute-at-loads", block.name)
        found = _iter_domains(block, loads[0].indices, _with_uses(tree, box, uses, loop))
        if domains and found:
            raise UnsupportedProgram("reverse-compute-at-producers", block.name)
        domains |= found
    last = max(_child_index(tree, loop, producer) for producer in producers)
    consumers = [_child_index(tree, loop, c) for c in tree.consumers(block) if c in below]
    place = min(consumers, default=len(loop.body))
    if place <= last:
        raise UnsupportedProgram("reverse-compute-at-place", block.name)
    _move(tree, block, loop, place, domains)


def _with_uses(tree: Tree, box: list[Region], uses: list[list[Uses]], loop: LoopNode) -> _Required:
    """A box with the variables of the loops at and above ``loop`` that its start depends on."""
    outside = {x.var for x in [*tree.path(loop), loop]}
    together: list[Uses] = []
    for found in zip(*uses, strict=True):
        merged = {v: s for use in reversed(found) for v, s in use.items() if v in outside}
        together.append(merged)
    return list(zip(box, together, strict=True))


def _iter_domains(
    block: Block, indices: tuple[Expr, ...], required: _Required
) -> dict[int, tuple[Region, Uses]]:
    """Domain of every iterator that indexes the buffer; each dimension must be one iterator."""
    out: dict[int, tuple[Region, Uses]] = {}
    for index, need in zip(indices, required, strict=True):
        if isinstance(index, Const):
            continue
        if not isinstance(index, Axis) or index.slot in out:
            raise UnsupportedProgram("block-index", f"{block.name}: {index}")
        out[index.slot] = need
    return out


def _child_index(tree: Tree, loop: LoopNode, block: Block) -> int:
    path: list[Node] = [*tree.path(block), block]
    return loop.body.index(path[path.index(loop) + 1])


def _move(
    tree: Tree,
    block: Block,
    loop: LoopNode,
    place: int,
    domains: dict[int, tuple[Region, Uses]],
) -> None:
    anchor = loop.body[place] if place < len(loop.body) else None
    if block in set(tree.blocks(loop)):
        raise UnsupportedProgram("compute-at-own-loop", block.name)
    remove(block)
    bindings, loops = [], []
    for slot, it in enumerate(block.iters):
        if it.kind == "derived":
            bindings.append(block.bindings[slot])
            continue
        whole = Region(af.Affine(), 0, it.extent - 1)
        region, uses = domains.get(slot, (whole, {}))
        region = clipped(region, it.extent)
        extent = region.hi - region.lo + 1
        if np.any(np.greater_equal(extent, UNKNOWN_WIDTH)):
            raise UnsupportedProgram("unresolved-size", block.name)
        var = LoopVar(f"ax{slot}", plain(extent))
        bindings.append(Binding(af.add(start_of(region), af.variable(var)), uses | {var: 1}))
        loops.append(LoopNode(var))
    block.bindings = bindings
    nest: Node = block
    for node in reversed(loops):
        node.body, nest.parent = [nest], node
        nest = node
    insert(loop, loop.body.index(anchor) if anchor is not None else len(loop.body), nest)
