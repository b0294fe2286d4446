"""Schedule primitives of TIR, each a rewrite of the tree (src/s_tir/schedule/primitive).

Of loop_transformation.cc, for_kind.cc, cache_read_write.cc, reduction.cc, compute_inline.cc and
compute_at.cc, in this order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import (
    Axis,
    Const,
    Expr,
    Load,
    redirect_loads,
    replace_loads,
    substitute_axes,
)
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod
from pruner.program.index.regions import UNKNOWN_WIDTH, Region
from pruner.program.nests import Buffer, Mark
from pruner.program.tir.layouts import iterators_of, old_indices
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
    BlockIter,
    LoopNode,
    Tree,
    TreeNode,
    Uses,
    insert,
    nest,
    remove,
    replace_child,
    uniform,
)


def split(tree: Tree, loop: LoopNode, factors: Sequence[IntLike | None]) -> list[LoopNode]:
    """Split a loop, outermost first; one factor may be None, the least."""
    product = math.prod(factor for factor in factors if factor is not None)
    extents = [-(-loop.extent // product) if f is None else f for f in factors]
    names = [f"{loop.var.name}_{i}" for i in range(len(extents))]
    made = [LoopNode(LoopVar(n, af.plain(e))) for n, e in zip(names, extents, strict=True)]
    value = Affine()
    uses: dict[LoopVar, IntLike] = {}
    # i = i_k + i_{k-1} * n_k + ...: from the innermost loop, whose scale is 1.
    scale: IntLike = 1
    for node in reversed(made):
        value, uses[node.var] = af.add(value, af.variable(node.var), scale), scale
        scale = scale * node.extent
    nest(made, loop.body)
    made[0].unroll = loop.unroll
    replace_child(loop, [made[0]])
    tree.define(loop.var, value, uses)
    return made


def fuse(tree: Tree, loops: Sequence[LoopNode]) -> LoopNode:
    """Fuse loops ``i`` and ``j`` into ``i_j``; rename a single loop."""
    _check_chain(loops)
    extent = math.prod(loop.extent for loop in loops)
    name = "_".join(loop.var.name for loop in loops) + "_fused"
    fused = LoopNode(LoopVar(name, af.plain(extent)), unroll=loops[0].unroll, fused=True)
    value = af.variable(fused.var)
    inner: IntLike = 1
    for number, loop in enumerate(reversed(loops)):
        # From the innermost loop: i_n = f mod n, then f div n mod the next extent, and so on.
        part = floordiv(value, inner)
        if number < len(loops) - 1:
            part = floormod(part, loop.extent)
        # A divided variable has no stride (0) in the fused loop; that of a single loop is 1.
        tree.define(loop.var, part, {fused.var: 1 if len(loops) == 1 else 0})
        inner = inner * loop.extent
    nest([fused], loops[-1].body)
    replace_child(loops[0], [fused])
    return fused


def cut(tree: Tree, loops: Sequence[LoopNode], outside: Sequence[Mask]) -> LoopNode:
    """Cut loops into outer and inner halves; a program has one each.

    ``for i: for j`` -> ``for i_out: for j_out: for i_in: for j_in``, no primitive of TVM's: a block
    between them stands under the loops that are ``outside`` (bool [N] of each, outer loops first)
    in a program. Returns the innermost outer half.
    """
    _check_chain(loops)
    halves: list[list[LoopNode]] = [[], []]
    for loop, around in zip(loops, outside, strict=True):
        for half, here in zip(halves, (around, ~around), strict=True):
            var = LoopVar(loop.var.name, af.plain(np.where(here, loop.extent, 1)))
            half.append(LoopNode(var, absent=np.asarray(loop.absent) | ~here))
        outer, inner = (half[-1].var for half in halves)
        # One of the two is always 0 (extent 1), so the sum is the old variable in every program.
        value = af.add(af.variable(outer), af.variable(inner))
        tree.define(loop.var, value, {outer: 1, inner: 1})
    replace_child(loops[0], [halves[0][0]])
    nest([*halves[0], *halves[1]], loops[-1].body)
    return halves[0][-1]


def reorder(tree: Tree, order: Sequence[LoopNode]) -> None:
    """Reorder the loops of one chain; unnamed loops keep their places."""
    depth = {loop: len(tree.path(loop)) for loop in order}
    last = max(order, key=lambda loop: depth[loop])
    first = min(order, key=lambda loop: depth[loop])
    # From the outermost named loop to the innermost: TVM asks for a chain without other children.
    chain = [*tree.path(last)[depth[first] :], last]
    _check_chain(chain)
    body, place = last.body, first.parent  # before the loops are linked anew
    assert place is not None
    position = place.body.index(first)
    queue = iter(order)
    arranged = [next(queue) if loop in depth else loop for loop in chain]
    nest(arranged, body)
    place.body[position] = arranged[0]
    arranged[0].parent = place


def blockize(loop: LoopNode) -> Block:
    """Turn the nest at ``loop`` into one block, with its loops inside."""
    chain, body = [loop], loop.body
    while len(body) == 1 and isinstance(body[0], LoopNode):
        chain.append(body[0])
        body = body[0].body
    if len(body) != 1 or not isinstance(body[0], Block):
        raise UnsupportedProgram("blockize", loop.var.name)
    block = body[0]
    replace_child(loop, [block])
    # Definitions stay valid: inner loops keep their variables, only their nodes go.
    block.inner = (*(inner.var for inner in chain), *block.inner)
    block.name += "_o"
    return block


def unblockize(block: Block) -> list[LoopNode]:
    """Undo :func:`blockize`; return the loops, outermost first."""
    parent = block.parent
    assert parent is not None
    made = [LoopNode(var) for var in block.inner]
    if made:
        replace_child(block, [made[0]])
        nest(made, [block])
        block.inner = ()
    return made


def _check_chain(loops: Sequence[LoopNode]) -> None:
    for outer, inner in pairwise(loops):
        if outer.body != [inner]:
            raise UnsupportedProgram("loop-chain", f"{inner.var.name} is not alone in its loop")


def cache_read(
    tree: Tree, block: Block, read_index: int, scope: str, consumers: list[Block]
) -> Block:
    """Copy an input of ``block`` to ``scope``; its consumers read the copy."""
    source = tree.buffers[block.reads[read_index]]
    cache = tree.new_buffer(f"{source.name}_{scope}", source, scope)
    readers = list(dict.fromkeys([block, *consumers]))
    for reader in readers:
        reader.value = redirect_loads(reader.value, source.key, cache.key)
        reader.reads = [cache.key if key == source.key else key for key in reader.reads]
    # Before the first reader, as TVM inserts it; compute_at moves it on later.
    first = min(_child_index(tree, tree.root, reader) for reader in readers)
    return _insert_copy(tree, first, cache.name, source, cache)


def cache_write(tree: Tree, block: Block, scope: str) -> Block:
    """Let ``block`` write to ``scope``; return the block that copies it out."""
    target = tree.buffers[block.buffer]
    cache = tree.new_buffer(f"{target.name}_{scope}", target, scope)
    block.value = redirect_loads(block.value, target.key, cache.key)
    block.reads = [cache.key if key == target.key else key for key in block.reads]
    block.buffer = cache.key
    place = _child_index(tree, tree.root, block) + 1
    return _insert_copy(tree, place, cache.name, cache, target)


def _insert_copy(tree: Tree, place: int, name: str, source: Buffer, target: Buffer) -> Block:
    axes = tuple(Axis(d) for d in range(len(source.shape)))
    loops = [LoopVar(f"ax{d}", extent) for d, extent in enumerate(source.shape)]
    copy = Block(
        name=name,
        iters=tuple(BlockIter("spatial", extent) for extent in source.shape),
        bindings=list(map(Binding.of, loops)),
        buffer=target.key,
        indices=axes,
        value=Load(source.key, axes, source.dtype),
        reads=[source.key],
    )
    insert(tree.root, place, nest(list(map(LoopNode, loops)), [copy]))
    return copy


def is_data_parallel(loop: LoopNode, reducing: set[LoopVar]) -> bool:
    """Return whether no reduction iterator below moves with the loop (``GetLoopIterType``).

    TVM's bindings keep a unit loop, but not one that `fuse` made. Raises :class:`Diverges` where
    such a loop over a reduction (``reducing``) is a unit loop for some programs only.
    """
    if loop.var not in reducing:
        return True
    return loop.fused and bool(uniform(np.equal(loop.extent, 1)))


def reduces_over_threads(tree: Tree, block: Block) -> bool:
    """Return whether a reduction iterator is bound to threads."""
    # Virtual threads are unrolled into one thread, so nothing is reduced across them.
    threads = {x.var for x in tree.path(block) if x.is_bound and x.mark is not Mark.VTHREAD}
    return not threads.isdisjoint(tree.reducing(block))


def decompose_reduction(tree: Tree, block: Block, loop: LoopNode) -> Block:
    """Move the block's initialisation to a new block before ``loop``."""
    assert block.init is not None
    spatial = [i for i, it in enumerate(block.iters) if it.kind == "spatial"]
    # Only loops that move the output's elements are repeated for the init.
    used = {var for i in spatial for var in tree.uses(block, i)}
    path = tree.path(block)
    inner = path[path.index(loop) :]
    # A tensorised init fills a whole fragment, so the spatial inner loops come along.
    kept = tuple(var for var in block.inner if var in used)
    names = {var: LoopVar(var.name + "_init", var.extent) for var in kept}
    table = [Axis(spatial.index(i)) if i in spatial else Axis(-1) for i in range(len(block.iters))]
    init = Block(
        name=block.name + "_init",
        iters=tuple(block.iters[i] for i in spatial),
        bindings=[],
        buffer=block.buffer,
        indices=tuple(substitute_axes(index, table) for index in block.indices),
        value=block.init,
        annotations=dict(block.annotations),
        inner=tuple(names[var] for var in kept),
    )
    repeated = [x for x in inner if x.var in used]
    names |= {x.var: LoopVar(x.var.name + "_init", x.extent) for x in repeated}
    init.bindings = [tree.rebound(block.bindings[i], tree.uses(block, i), names) for i in spatial]
    loops = [LoopNode(names[x.var], mark=x.mark, unroll=x.unroll) for x in repeated]
    parent = loop.parent
    assert parent is not None
    insert(parent, parent.body.index(loop), nest(loops, [init]))
    block.init = None
    block.name += "_update"
    return init


def compute_inline(tree: Tree, block: Block) -> None:
    """Inline the block into its consumers."""
    # Inverted before the rewrite: a map that cannot be inverted must leave the tree untouched.
    iterators = iterators_of(block, block.indices)

    def inlined(load: Load) -> Expr:
        # The consumer's indices, inverted to the block's iterators.
        values = [substitute_axes(iterator, load.indices) for iterator in iterators]
        return substitute_axes(block.value, values)

    consumers = tree.consumers(block)
    if not consumers or block.init is not None:
        raise UnsupportedProgram("compute-inline", block.name)
    for consumer in consumers:
        consumer.value = replace_loads(consumer.value, block.buffer, inlined)
        consumer.list_reads()
    remove(block)


def can_inline(tree: Tree, block: Block) -> bool:
    """Return whether TVM would inline the block into its consumers."""
    if block.init is not None or tree.buffers[block.buffer].is_param:
        return False
    try:
        iterators_of(block, block.indices)
    except UnsupportedProgram:
        return False
    return bool(tree.consumers(block))


def reverse_compute_inline(tree: Tree, block: Block) -> None:
    """Inline the block into its single producer, which stores its value."""
    producers = tree.producers(block)
    if len(producers) != 1 or block.init is not None:
        raise UnsupportedProgram("reverse-compute-inline", block.name)
    producer = producers[0]
    loads = block.loads_of(producer.buffer)
    layout = tree.layouts.get(producer.buffer)
    if producer.init is not None or (layout is None and len(set(loads)) != 1):
        raise UnsupportedProgram("reverse-compute-inline", block.name)
    read, written = loads[0].indices, producer.indices
    shape = tree.buffers[producer.buffer].shape
    # After transform_layout the producer's indices are those of the new layout: go back to the old.
    if layout is not None:
        read, written, shape = layout.reads[block], old_indices(layout, written), layout.shape
    values = [substitute_axes(iterator, written) for iterator in iterators_of(block, read)]
    for dimension, index in enumerate(read):
        if not isinstance(index, Axis):
            continue
        extent = block.iters[index.slot].extent
        # The block reads only a part of a padded dimension: the producer then writes under a guard.
        if not np.all(np.equal(extent, shape[dimension])):
            producer.guards += ((values[index.slot], extent),)
    old, inner = producer.buffer, producer.value
    producer.value = replace_loads(substitute_axes(block.value, values), old, lambda _: inner)
    producer.indices = tuple(substitute_axes(index, values) for index in block.indices)
    producer.buffer = block.buffer
    producer.list_reads()
    assert old != producer.buffer
    remove(block)


_Required = list[tuple[Region, Uses]]
_Loops = list[tuple[LoopNode, bool]]  # and whether a loop is one of the block's reductions


def lacking(tree: Tree, loop: LoopNode) -> Mask | np.bool_:
    """Return where neither the loop nor a loop around it exists."""
    out: Mask | np.bool_ = np.bool_(True)
    for one in (*tree.path(loop), loop):
        out = out & np.asarray(one.absent)
    return out


def compute_at(tree: Tree, block: Block, loop: LoopNode) -> None:
    """Move ``block`` under ``loop``, before the first subtree that reads it.

    Programs that are :func:`lacking` the loop keep the loops that the block has.
    """
    below = set(tree.blocks(loop))
    consumers = [b for b in tree.consumers(block) if b in below]
    if not consumers or len(consumers) < len(tree.consumers(block)):
        # As TVM: NotAllRequiredBlocksAreVisitedError.
        raise UnsupportedProgram("compute-at-consumers", block.name)
    scope = tree.buffers[block.buffer].scope
    boxes, uses = [], []
    for consumer in consumers:
        moving = loops_between(tree, consumer, loop) | shared_threads(tree, loop, scope)
        # Threads around the loop share the buffer: one run must serve all of them.
        for load in consumer.loads_of(block.buffer):
            # Programs without the loop do not use this region, so they stay certain.
            unsure = partly_moving(tree, consumer, load.indices, moving)
            tree.uncertain = tree.uncertain | (unsure & ~lacking(tree, loop))
            boxes.append(region_of(tree, consumer, load.indices, moving))
            uses.append([index_uses(tree, consumer, i) for i in load.indices])
    required = _with_uses(tree, union_all(boxes), uses, loop)
    place = min(_child_index(tree, loop, consumer) for consumer in consumers)
    _move(tree, block, loop, place, _iter_domains(block, block.indices, required))


def reverse_compute_at(tree: Tree, block: Block, loop: LoopNode) -> None:
    """Move ``block`` under ``loop``, after the last subtree that writes its input."""
    below = set(tree.blocks(loop))
    producers = [b for b in tree.producers(block) if b in below]
    if not producers:
        raise UnsupportedProgram("reverse-compute-at-producers", block.name)
    domains: dict[int, tuple[Region, Uses]] = {}
    for producer in producers:
        moving = loops_between(tree, producer, loop)
        box = region_of(tree, producer, producer.indices, moving)
        uses = [[index_uses(tree, producer, i) for i in producer.indices]]
        # ``x * sigmoid(x)`` reads a place twice; reads of several places have no batched form here
        read = {load.indices for load in block.loads_of(producer.buffer)}
        if len(read) != 1:
            raise UnsupportedProgram("reverse-compute-at-loads", block.name)
        found = _iter_domains(block, read.pop(), _with_uses(tree, box, uses, loop))
        # Two producers that bound the same iterator have no batched form here.
        if domains and found:
            raise UnsupportedProgram("reverse-compute-at-producers", block.name)
        domains |= found
    last = max(_child_index(tree, loop, producer) for producer in producers)
    consumers = [_child_index(tree, loop, c) for c in tree.consumers(block) if c in below]
    # Behind all producers and before every consumer, or there is no place.
    place = min(consumers, default=len(loop.body))
    if place <= last:
        raise UnsupportedProgram("reverse-compute-at-place", block.name)
    _move(tree, block, loop, place, domains)


def _with_uses(tree: Tree, box: list[Region], uses: list[list[Uses]], loop: LoopNode) -> _Required:
    """Return a box with the outer variables that its start uses."""
    outside = {x.var for x in [*tree.path(loop), loop]}
    together: list[Uses] = []
    for found in zip(*uses, strict=True):
        # The first access wins where several use a variable: the region starts from it.
        merged = {v: s for use in reversed(found) for v, s in use.items() if v in outside}
        together.append(merged)
    return list(zip(box, together, strict=True))


def _iter_domains(
    block: Block, indices: tuple[Expr, ...], required: _Required
) -> dict[int, tuple[Region, Uses]]:
    """Return the domain of every iterator that indexes the buffer."""
    out: dict[int, tuple[Region, Uses]] = {}
    for index, need in zip(indices, required, strict=True):
        if isinstance(index, Const):
            continue
        if not isinstance(index, Axis) or index.slot in out:
            raise UnsupportedProgram("block-index", f"{block.name}: {index}")
        out[index.slot] = need
    return out


def _child_index(tree: Tree, loop: LoopNode, block: Block) -> int:
    path: list[TreeNode] = [tree.root, *tree.path(block), block]
    return loop.body.index(path[path.index(loop) + 1])


def _move(
    tree: Tree,
    block: Block,
    loop: LoopNode,
    place: int,
    domains: dict[int, tuple[Region, Uses]],
) -> None:
    # The anchor is kept by identity: removing the block may shift places in the body.
    anchor = loop.body[place] if place < len(loop.body) else None
    if block in set(tree.blocks(loop)):
        raise UnsupportedProgram("compute-at-own-loop", block.name)
    stays = lacking(tree, loop)
    kept = _kept_loops(tree, block, stays) if af.any_nonzero(stays) else []
    remove(block)
    bindings: list[Binding] = []
    made: _Loops = []
    for slot, it in enumerate(block.iters):
        if it.kind == "derived":
            bindings.append(block.bindings[slot])
            continue
        whole = Region(af.Affine(), 0, it.extent - 1)
        region, uses = domains.get(slot, (whole, {}))
        # Padded tiles overrun the tensor; TVM intersects the domain with the iterator's own.
        region = clipped(region, it.extent)
        # Where the block stays, its new loops have one iteration and its old ones go on.
        extent = af.where(stays, 1, region.hi - region.lo + 1)
        unknown = np.greater_equal(extent, UNKNOWN_WIDTH)
        if af.any_nonzero(unknown):
            tree.uncertain = tree.uncertain | unknown
            extent = af.where(unknown, 1, extent)
        var = LoopVar(f"ax{slot}", af.plain(extent))
        value, uses = af.add(start_of(region), af.variable(var)), uses | {var: 1}
        if af.any_nonzero(stays):
            value = af.add(block.bindings[slot].value, af.mul(value, af.where(stays, 0, 1)))
            uses = block.bindings[slot].uses | uses
        bindings.append(Binding(value, uses))
        made.append((LoopNode(var, absent=stays), it.kind == "reduce"))
    block.bindings = bindings
    found = nest(_by_phase(kept, made), [block])
    insert(loop, loop.body.index(anchor) if anchor is not None else len(loop.body), found)


def _kept_loops(tree: Tree, block: Block, stays: Mask | np.bool_) -> _Loops:
    reducing, out = tree.reducing(block), []
    for loop in tree.path(block):
        var = LoopVar(loop.var.name, af.plain(af.where(stays, loop.extent, 1)))
        tree.define(loop.var, af.variable(var), {var: 1})
        node = LoopNode(var, absent=np.asarray(loop.absent) | ~stays)
        out.append((node, loop.var in reducing))
    return out


def _by_phase(*nests: _Loops) -> list[LoopNode]:
    """Merge nests, each loop in its phase (:func:`pruner.program.tir.locations.alike`)."""
    phases: list[list[LoopNode]] = [[], [], []]
    for some in nests:
        reductions = [place for place, (_, reduces) in enumerate(some) if reduces]
        first, end = (reductions[0], reductions[-1] + 1) if reductions else (len(some), len(some))
        loops = [loop for loop, _ in some]
        for phase, part in zip(phases, (loops[:first], loops[first:end], loops[end:]), strict=True):
            phase += part
    return [loop for phase in phases for loop in phase]
