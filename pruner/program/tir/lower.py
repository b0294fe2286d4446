"""Lower block trees to loop nests, for features, symbols and the draft.

As in the released data and models, a fetch's own threads are loops inside the block's, and indices
count in the whole tensor. TVM's ``PerStoreFeature`` unifies threads of one axis and cuts buffers to
their used box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pruner.arrays import IntLike
from pruner.program.dag.expr import Axis, Const, Expr, Load, children, fold, loads, rebuild
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import Allocation, BufferStore, Loop, LoopKind, LoopNests, Mark, StoreKind
from pruner.program.tir.primitives import reduces_over_threads
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.shared import copies_ahead, dynamic_bytes
from pruner.program.tir.tree import Block, LoopNode, Place, Tree, TreeNode


@dataclass(slots=True, eq=False)
class _Lowering:
    tree: Tree
    nests: LoopNests
    places: dict[int, Place]
    kinds: dict[LoopVar, LoopKind]
    allocated: dict[LoopNode | None, list[int]] = field(default_factory=dict)


def lower(tree: Tree) -> LoopNests:
    """Lower the N programs of a finished tree to loop nests.

    A reduction over threads becomes a call, as in Ansor's features, with its ``reduction``.
    """
    places = buffer_scopes(tree)  # first: it may find programs uncertain
    nests = LoopNests(
        tree.num_programs,
        list(tree.buffers),
        shared_bytes=dynamic_bytes(tree),
        copies_ahead=copies_ahead(tree),
    )
    lowering = _Lowering(tree, nests, places, _loop_kinds(tree))
    for key, place in places.items():
        lowering.allocated.setdefault(place.loop, []).append(key)
    # Buffers of several kernels, and results, live outside all loops.
    _allocate(lowering, None, ())
    for node in tree.root.body:
        _emit(lowering, node, (), 0)
    return nests


def _allocate(e: _Lowering, loop: LoopNode | None, loops: tuple[Loop, ...]) -> None:
    for key in e.allocated.get(loop, []):
        extents = tuple(af.plain(r.hi - r.lo + 1) for r in e.places[key].box)
        e.nests.allocations[key] = Allocation(e.nests.buffers[key], loops, extents)


def _emit(e: _Lowering, node: TreeNode, loops: tuple[Loop, ...], unroll: IntLike) -> None:
    if isinstance(node, Block):
        _emit_block(e, node, loops, unroll)
        return
    if node.unroll is not None:
        unroll = af.where(np.greater(node.unroll, 0), node.unroll, unroll)
    # Absent everywhere: half of a loop, or gone into another.
    if not af.everywhere(node.absent):
        loops = (*loops, Loop(node.var, node.extent, node.mark, e.kinds.get(node.var)))
    _allocate(e, node, loops)
    for child in node.body:
        _emit(e, child, loops, unroll)


def _emit_block(e: _Lowering, block: Block, loops: tuple[Loop, ...], unroll: IntLike) -> None:
    inner = (Loop(v, v.extent, Mark.TENSORIZE, e.kinds.get(v)) for v in block.inner)
    loops = (*loops, *inner)
    if block.init is not None and reduces_over_threads(e.tree, block):
        reducing = e.tree.reducing(block)
        # Loops of the reduction without threads surround the hidden partial sums only, as in TE.
        kept = tuple(x for x in loops if x.is_bound or x.var not in reducing)
        value = Const(0.0, e.tree.buffers[block.buffer].dtype)
        store = _store(e, block, value, "allreduce", kept, unroll)
        store.reduction = _store(e, block, block.value, "update", loops, unroll)
        e.nests.stores.append(store)
        return
    if block.init is not None:
        e.nests.stores.append(_store(e, block, block.init, "init", loops, unroll))
    kind: StoreKind = "plain"
    if block.reduces:
        # A block that writes a constant is the initialisation that decompose_reduction split off.
        kind = "update"
    elif isinstance(block.value, Const):
        kind = "init"
    e.nests.stores.append(_store(e, block, block.value, kind, loops, unroll))


def _store(
    e: _Lowering,
    block: Block,
    value: Expr,
    kind: StoreKind,
    loops: tuple[Loop, ...],
    unroll: IntLike,
) -> BufferStore:
    """Emit a store; each index of its loads becomes a simplified axis slot."""
    values = e.tree.values(block)
    table = dict(enumerate(values))
    slots = [*(evaluate_index(index, table) for index in block.indices), *values]
    shift = [Axis(slot + len(block.indices)) for slot in range(len(values))]
    # Equal loads share their slots: features merge accesses by their indices.
    known: dict[Load, Load] = {}

    def rule(node: Expr) -> Expr:
        if isinstance(node, Load) and node not in known:
            own: list[Expr] = [Axis(len(slots) + d) for d in range(len(node.indices))]
            # One slot an index: features read strides off simplified sums, never off expressions.
            slots.extend(evaluate_index(index, table) for index in node.indices)
            for d, index in enumerate(node.indices):
                if loads(index):  # looked up: the table is read too
                    own[d] = _rewrite_outside_loads(index, rule)
            known[node] = Load(node.stage, tuple(own), node.dtype)
        if isinstance(node, Load):
            return known[node]
        return shift[node.slot] if isinstance(node, Axis) else node

    body = fold(_rewrite_outside_loads(value, rule))
    buffer = e.nests.buffers[block.buffer]
    return BufferStore(buffer, kind, body, loops, tuple(slots), unroll)


def _rewrite_outside_loads(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Rewrite bottom-up, but leave the indices of loads to ``rule``."""
    old = () if isinstance(expr, Load) else children(expr)
    new = tuple(_rewrite_outside_loads(child, rule) for child in old)
    return rule(expr if new == old else rebuild(expr, new))


def _loop_kinds(tree: Tree) -> dict[LoopVar, LoopKind]:
    """Return "reduce" for loops that blocks accumulate over; of two, the later decides."""
    kinds: dict[LoopVar, LoopKind] = {}
    # In order of buffers, so that the later one overwrites.
    for block in sorted(tree.blocks(), key=lambda block: block.buffer):
        if block.reduces:
            reducing = tree.reducing(block)
            for var in (*(loop.var for loop in tree.path(block)), *block.inner):
                kinds[var] = "reduce" if var in reducing else "spatial"
    return kinds
