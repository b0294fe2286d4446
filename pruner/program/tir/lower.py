"""Block trees to loop nests: what features, symbols and draft look at.

Two lowerings. ``ansor`` is what the released data and models know: a fetch's own threads are loops
inside the block's, and indices are those of the whole tensor. ``metaschedule`` is what TVM's
``PerStoreFeature`` sees: threads of one axis are one loop and buffers are cut to what is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pruner.arrays import IntLike
from pruner.program.dag.expr import Axis, Const, Expr, Load, children, rebuild
from pruner.program.dag.fold import fold
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.regions import Region, evaluate_index
from pruner.program.te.bounds import Bounds
from pruner.program.te.lower import Allocation, LoopNests, NestLoop, Store, StoreKind
from pruner.program.te.schedule import AxisKind, Loop, Schedule, StageState
from pruner.program.tir.reduction import reduces_over_threads
from pruner.program.tir.regions import (
    clipped,
    guarded_region_of,
    loops_between,
    rank_of,
    shared_threads,
    start_of,
    union_all,
)
from pruner.program.tir.tree import Block, LoopNode, Node, Place, Tree, plain, renamed

Lowering = Literal["ansor", "metaschedule"]


@dataclass(slots=True, eq=False)
class _Emitter:
    tree: Tree
    nests: LoopNests
    lowering: Lowering
    places: dict[int, Place]
    whole: bool
    allocated: dict[LoopNode | None, list[int]] = field(default_factory=dict)
    unified: dict[LoopVar, LoopVar] = field(default_factory=dict)


def build_nests(
    tree: Tree, num: int, lowering: Lowering = "ansor", *, whole_reductions: bool = False
) -> LoopNests:
    """Loop nests of the N programs of a tree.

    A reduction over threads becomes a call that hides its work, as Ansor's features have it;
    ``whole_reductions`` shows it as an ordinary update, which is what a draft wants.
    """
    places = buffer_places(tree)
    pool = [_stage(tree, key, places, lowering) for key in range(len(tree.buffers))]
    ranks = {key: rank_of(tree.buffers[key].scope) for key in places}
    order = list(places)
    nests = LoopNests(num, Schedule(pool, order, order), Bounds({}, {}, ranks))
    emitter = _Emitter(tree, nests, lowering, places, whole_reductions)
    for key, place in places.items():
        emitter.allocated.setdefault(place.loop, []).append(key)
    _allocate(emitter, None, ())
    for node in tree.root.body:
        _emit(emitter, node, (), 0)
    return nests


def buffer_places(tree: Tree) -> dict[int, Place]:
    """Where every written buffer lives, by key, in order of first store; of a finished tree."""
    if not tree.places:
        written = dict.fromkeys(block.buffer for block in tree.blocks())
        tree.places.update((key, _place(tree, key)) for key in written)
    return tree.places


def _place(tree: Tree, key: int) -> Place:
    """The innermost loop around all accesses, and the box they touch in one iteration of it."""
    buffer = tree.buffers[key]
    whole = [Region(Affine(), 0, extent - 1) for extent in buffer.shape]
    if buffer.is_param:
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
            moving |= shared_threads(tree, loop, buffer.scope)
        indices = [block.indices] if block.buffer == key else []
        indices += [load.indices for load in block.loads_of(key)]
        boxes += [guarded_region_of(tree, block, index, moving) for index in dict.fromkeys(indices)]
    box = zip(union_all(boxes), buffer.shape, strict=True)
    return Place(loop, [clipped(region, extent) for region, extent in box])


def _stage(tree: Tree, key: int, places: dict[int, Place], lowering: Lowering) -> StageState:
    buffer = tree.buffers[key]
    shape: tuple[IntLike, ...] = buffer.shape
    if lowering == "metaschedule" and key in places:
        shape = tuple(plain(r.hi - r.lo + 1) for r in places[key].box)
    axes = [Loop(f"i{d}", "spatial", extent) for d, extent in enumerate(shape)]
    return StageState(
        key=key, name=buffer.name, dtype=buffer.dtype, shape=shape, axes=axes, reduce=[],
        body=None, scope=buffer.scope, leaves=[], is_output=buffer.is_param,
    )  # fmt: skip


def _allocate(e: _Emitter, loop: LoopNode | None, loops: tuple[NestLoop, ...]) -> None:
    for key in e.allocated.get(loop, []):
        extents = tuple(plain(r.hi - r.lo + 1) for r in e.places[key].box)
        e.nests.allocations[key] = Allocation(e.nests.schedule.pool[key], loops, extents)


def _emit(e: _Emitter, node: Node, loops: tuple[NestLoop, ...], unroll: IntLike) -> None:
    if isinstance(node, Block):
        _emit_block(e, node, loops, unroll)
        return
    if node.unroll is not None:
        unroll = af.where(np.greater(node.unroll, 0), node.unroll, unroll)
    same = next((x for x in loops if x.is_thread and x.mark == node.mark), None)
    if same is not None and e.lowering == "metaschedule" and node.mark != "vthread":
        e.unified[node.var] = e.unified.get(same.var, same.var)
    else:
        loops = (*loops, NestLoop(e.nests.num_loops, node.var, node.extent, node.mark))
        e.nests.num_loops += 1
    _allocate(e, node, loops)
    for child in node.body:
        _emit(e, child, loops, unroll)


def _emit_block(e: _Emitter, block: Block, loops: tuple[NestLoop, ...], unroll: IntLike) -> None:
    if block.reduces:
        _note_reduction_loops(e, block)
    if block.init is not None and not e.whole and reduces_over_threads(e.tree, block):
        reducing = _reduction_loops(e, block)
        kept = tuple(x for x in loops if x.is_thread or x.var not in reducing)
        value = Const(0.0, e.tree.buffers[block.buffer].dtype)
        _store(e, block, value, "allreduce", kept, unroll)
        return
    if block.init is not None:
        _store(e, block, block.init, "init", loops, unroll)
    kind: StoreKind = "plain"
    if block.reduces:
        kind = "update"
    elif isinstance(block.value, Const):
        kind = "init"
    _store(e, block, block.value, kind, loops, unroll)


def _store(
    e: _Emitter,
    block: Block,
    value: Expr,
    kind: StoreKind,
    loops: tuple[NestLoop, ...],
    unroll: IntLike,
) -> None:
    """One store; every index a load uses is an axis slot of its own, simplified beforehand."""
    values = [renamed(value, e.unified) for value in e.tree.values(block)]
    table = dict(enumerate(values))
    roots = [*_indices(e, block.buffer, block.indices, table), *values]
    shift = [Axis(slot + len(block.indices)) for slot in range(len(values))]
    known: dict[Load, Load] = {}

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node not in known:
            slots = tuple(Axis(len(roots) + d) for d in range(len(node.indices)))
            roots.extend(_indices(e, node.stage, node.indices, table))
            known[node] = Load(node.stage, slots, node.dtype)
        if isinstance(node, Load):
            return known[node]
        return shift[node.slot] if isinstance(node, Axis) else node

    body = fold(_rewrite_outside_loads(value, rule))
    stage = e.nests.schedule.pool[block.buffer]
    e.nests.stores.append(Store(stage, kind, body, loops, tuple(roots), unroll))


def _rewrite_outside_loads(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Rewrite from the leaves up, but leave the indices of loads to the rule."""
    old = () if isinstance(expr, Load) else children(expr)
    new = tuple(_rewrite_outside_loads(child, rule) for child in old)
    return rule(expr if new == old else rebuild(expr, new))


def _indices(
    e: _Emitter, key: int, indices: Sequence[Expr], table: dict[int, Affine]
) -> list[Affine]:
    """Simplified indices, counted from the start of the buffer where it is cut."""
    found = [evaluate_index(index, table) for index in indices]
    place = e.places.get(key)
    if e.lowering == "ansor" or place is None:
        return found
    return [af.add(x, start_of(r), -1) for x, r in zip(found, place.box, strict=True)]


def _reduction_loops(e: _Emitter, block: Block) -> set[LoopVar]:
    slots = [slot for slot, it in enumerate(block.iters) if it.kind == "reduce"]
    return {var for slot in slots for var in e.tree.uses(block, slot)}


def _note_reduction_loops(e: _Emitter, block: Block) -> None:
    """Say in the stage which loops reduce; draft symbols read it there."""
    stage, reducing = e.nests.schedule.pool[block.buffer], _reduction_loops(e, block)
    for loop in e.tree.path(block):
        kind: AxisKind = "reduce" if loop.var in reducing else "spatial"
        stage.leaves.append(Loop(loop.var.name, kind, loop.extent, loop.var))
