"""Loop transformations (src/s_tir/schedule/primitive/loop_transformation.cc and for_kind.cc)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pruner.arrays import IntLike
from pruner.errors import UnsupportedProgram
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod
from pruner.program.nests import Mark
from pruner.program.tir.tree import LoopNode, Node, Tree, plain, replace_child


def split(tree: Tree, loop: LoopNode, factors: Sequence[IntLike | None]) -> list[LoopNode]:
    """``for i`` -> ``for i_0: ... for i_k``, outermost first.

    At most one factor is None: the least that covers the loop. Iterations beyond the loop are cut
    off by a guard, which no feature looks at.
    """
    product: IntLike = 1
    for factor in factors:
        product = product if factor is None else product * factor
    extents = [-(-loop.extent // product) if f is None else f for f in factors]
    names = [f"{loop.var.name}_{i}" for i in range(len(extents))]
    made = [LoopNode(LoopVar(n, plain(e))) for n, e in zip(names, extents, strict=True)]
    value = Affine()
    uses: dict[LoopVar, IntLike] = {}
    scale: IntLike = 1
    for node in reversed(made):
        value, uses[node.var] = af.add(value, af.variable(node.var), scale), scale
        scale = scale * node.extent
    _nest(made, loop.body)
    made[0].unroll = loop.unroll
    replace_child(loop, [made[0]])
    tree.define(loop.var, value, uses)
    return made


def fuse(tree: Tree, loops: Sequence[LoopNode]) -> LoopNode:
    """``for i: for j`` -> ``for i_j``; a single loop gets a new name."""
    _check_chain(loops)
    extent: IntLike = 1
    for loop in loops:
        extent = extent * loop.extent
    name = "_".join(loop.var.name for loop in loops) + "_fused"
    fused = LoopNode(LoopVar(name, plain(extent)), unroll=loops[0].unroll, fused=True)
    value = af.variable(fused.var)
    inner: IntLike = 1
    for number, loop in enumerate(reversed(loops)):
        part = floordiv(value, inner)
        if number < len(loops) - 1:
            part = floormod(part, loop.extent)
        tree.define(loop.var, part, {fused.var: 1 if len(loops) == 1 else 0})
        inner = inner * loop.extent
    _nest([fused], loops[-1].body)
    replace_child(loops[0], [fused])
    return fused


def reorder(tree: Tree, order: Sequence[LoopNode]) -> None:
    """The loops of one chain in the order given; loops not named keep their places."""
    depth = {loop: len(tree.path(loop)) for loop in order}
    last = max(order, key=lambda loop: depth[loop])
    first = min(order, key=lambda loop: depth[loop])
    chain = [*tree.path(last)[depth[first] :], last]
    _check_chain(chain)
    body, place = last.body, first.parent
    assert place is not None
    position = place.body.index(first)
    queue = iter(order)
    arranged = [next(queue) if loop in depth else loop for loop in chain]
    _nest(arranged, body)
    place.body[position] = arranged[0]
    arranged[0].parent = place


def bind(loop: LoopNode, axis: str) -> None:
    """Bind to a GPU index; every virtual thread axis counts as one kind."""
    loop.mark = Mark.of_axis(axis)


def _nest(chain: Sequence[LoopNode], body: list[Node]) -> None:
    for outer, inner in pairwise(chain):
        outer.body, inner.parent = [inner], outer
    chain[-1].body = body
    for child in body:
        child.parent = chain[-1]


def _check_chain(loops: Sequence[LoopNode]) -> None:
    for outer, inner in pairwise(loops):
        if outer.body != [inner]:
            raise UnsupportedProgram("loop-chain", f"{inner.var.name} is not alone in its loop")
