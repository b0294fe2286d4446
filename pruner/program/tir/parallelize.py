"""Parallel, vector and unrolled loops of CPU programs.

Follows the postprocessor ``RewriteParallelVectorizeUnroll``
(src/s_tir/meta_schedule/postproc/rewrite_parallel_vectorize_unroll.cc): for every block,
``AdjustParallelVectorize`` counts how many outer loops may be fused into a parallel loop and how
many inner ones into a vector; ``RewriteFuseSplitParallelVectorize``, ``RewriteParallel`` and
``RewriteVectorize`` then fuse and mark them, and ``RewriteUnroll`` sets the pragma.

How many loops are fused differs between candidates, so TVM's ``fuse`` would give different trees.
Here one loop is added for what becomes parallel and one for the vector; a loop that went into one
of them keeps its place with extent 1, and all candidates share a tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike, Ints, Mask
from pruner.program.dag.expr import Expr
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import Mark
from pruner.program.tir.primitives import is_data_parallel, reducing_variables
from pruner.program.tir.regions import index_uses
from pruner.program.tir.tree import Block, LoopNode, Tree, Uses, plain, replace_child

_NO_LOOPS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PragmaSettings:
    """What MetaSchedule's rule ``ParallelizeVectorizeUnroll`` wrote at the root block.

    ``parallel``: most iterations of the parallel loop, ``vectorize``: most lanes, ``unroll``: depth
    of the unroll pragma; None where the rule does not ask for it. They are the annotations
    ``meta_schedule.parallel``, ``.vectorize`` and ``.unroll_explicit`` or ``_implicit``.
    """

    parallel: IntLike | None
    vectorize: IntLike | None
    unroll: IntLike | None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Which of a block's loops are fused, one mask a loop; ``whole``: all of them are fused and
    then split into a parallel loop and vectors of ``lanes``."""

    outer: list[Mask]
    inner: list[Mask]
    whole: Mask
    lanes: IntLike


def rewrite_parallel_vectorize_unroll(tree: Tree, settings: PragmaSettings) -> None:
    """Fuse and mark the loops of every block in program order."""
    for block in list(tree.blocks()):
        loops = tree.path(block)
        if not loops:
            continue
        if settings.parallel is not None or settings.vectorize is not None:
            _apply(tree, block, loops, _plan(tree, block, loops, settings))
        if settings.unroll is not None and block.reduces:
            _set_unroll(tree.path(block), settings.unroll)


def _set_unroll(loops: list[LoopNode], depth: IntLike) -> None:
    """The pragma of the outermost loop there is."""
    pending: Mask | np.bool_ = np.bool_(True)
    for loop in loops:
        here = pending & ~np.asarray(loop.absent)
        if np.any(here):
            loop.unroll = plain(np.where(here, depth, 0 if loop.unroll is None else loop.unroll))
        pending = pending & ~here
        if not np.any(pending):
            return


def _plan(tree: Tree, block: Block, loops: list[LoopNode], settings: PragmaSettings) -> _Plan:
    exists = [~np.asarray(loop.absent) for loop in loops]
    count = sum(x * 1 for x in exists)
    free = [_is_free(loop) for loop in loops]
    reducing = reducing_variables(tree, loops[0])
    kinds = [is_data_parallel(loop, reducing) for loop in loops]
    usable = [f & kind for f, kind in zip(free, kinds, strict=True)]
    single = _single(loops)
    fusible = contiguous_loops(tree, block, loops)
    outer, inner = np.full((), _NO_LOOPS), np.full((), _NO_LOOPS)
    if settings.parallel is not None:
        outer = _outer_loops(loops, usable, single, settings.parallel)
    if settings.vectorize is not None:
        inner = _inner_loops(loops, usable, single, settings.vectorize, fusible)
    # AdjustParallelVectorize: where both counts together exceed the loops, the parallel one gives
    # way; RewriteFuseSplitParallelVectorize instead fuses all loops and splits off the vector where
    # every loop is usable and all accesses are contiguous over all of them.
    both = (outer > _NO_LOOPS) & (inner > _NO_LOOPS)
    rewritable = sum((u & x & s) * 1 for u, x, s in zip(usable, exists, single, strict=True))
    whole = both & (rewritable == count) & (fusible == count)
    outer = np.where(both, np.minimum(outer, count - inner), outer)
    rank = np.cumsum(np.broadcast_arrays(*[x * 1 for x in exists]), axis=0)
    left = [x & (r <= outer) & ~whole for x, r in zip(exists, rank, strict=True)]
    right = [x & (count - r < inner) & ~whole for x, r in zip(exists, rank, strict=True)]
    lanes = 1 if settings.vectorize is None else settings.vectorize
    return _Plan(left, right, np.asarray(whole), lanes)


def _is_free(loop: LoopNode) -> Mask:
    """Neither annotated nor bound: the first test of a loop in ``AdjustParallelVectorize``."""
    if loop.annotations:
        return np.zeros((), bool)
    marked = np.asarray(loop.marked) if loop.mark is not None else np.zeros((), bool)
    return ~marked & ~np.greater(0 if loop.unroll is None else loop.unroll, 0)


def _single(loops: list[LoopNode]) -> list[Mask]:
    """Where each loop of a path has but one child.

    What stands in a loop that is absent stands in the one around it.
    """
    out: list[Mask] = []
    only = np.ones((), bool)
    for loop in reversed(loops):
        only = only & (len(loop.body) == 1)
        out.insert(0, only)
        only = only | ~np.asarray(loop.absent)
    return out


def _outer_loops(
    loops: list[LoopNode], usable: list[Mask], single: list[Mask], most: IntLike
) -> Ints:
    """Outer loops fused until their iterations exceed ``most``; -1 where they have but one.

    ``max_parallel_extent`` of AdjustParallelVectorize: the loop that exceeds it is still taken, and
    a loop with several children ends the run.
    """
    number, product, open_ = np.zeros((), np.int64), np.ones((), np.int64), np.ones((), bool)
    for loop, can, alone in zip(loops, usable, single, strict=True):
        exists = ~np.asarray(loop.absent)
        open_ = open_ & (can | ~exists)
        taken = open_ & exists
        number = number + taken * 1
        product = np.where(taken, product * loop.extent, product)
        stops = np.greater(product, most) | ~alone
        open_ = open_ & ~(exists & stops)
    return np.where(product == 1, _NO_LOOPS, number)


def _inner_loops(
    loops: list[LoopNode], usable: list[Mask], single: list[Mask], most: IntLike, fusible: Ints
) -> Ints:
    """Inner loops fused while the accesses stay contiguous and within ``most`` lanes.

    ``max_vectorize_extent`` of AdjustParallelVectorize: here the loop that exceeds it stays out.
    """
    number, product, open_ = np.zeros((), np.int64), np.ones((), np.int64), np.ones((), bool)
    for loop, can, alone in reversed(list(zip(loops, usable, single, strict=True))):
        exists = ~np.asarray(loop.absent)
        open_ = open_ & (~exists | (can & alone & (number < fusible)))
        product = np.where(open_ & exists, product * loop.extent, product)
        open_ = open_ & np.less_equal(product, most)
        number = number + (open_ & exists) * 1
    return np.where(product == 1, _NO_LOOPS, number)


def _apply(tree: Tree, block: Block, loops: list[LoopNode], plan: _Plan) -> None:
    extents = [loop.extent for loop in loops]
    everything = [plan.whole & ~np.asarray(loop.absent) for loop in loops]
    steps = [_steps(extents, masks) for masks in (plan.outer, plan.inner, everything)]
    total = steps[2][0] * np.where(everything[0], extents[0], 1)
    wide = np.where(plan.whole, -(-total // plan.lanes), _product(extents, plan.outer))
    narrow = np.where(plan.whole, plan.lanes, _product(extents, plan.inner))
    parallel = LoopNode(LoopVar("parallel", plain(wide)), mark=Mark.PARALLEL)
    vector = LoopNode(LoopVar("vector", plain(narrow)), mark=Mark.VECTORIZE)
    p, v = af.variable(parallel.var), af.variable(vector.var)
    together = af.add(v, p, plan.lanes)
    for i, loop in enumerate(loops):
        fused = plan.outer[i] | plan.inner[i] | everything[i]
        if not np.any(fused):
            continue
        old = loop.var
        loop.var = LoopVar(old.name, plain(np.where(fused, 1, old.extent)))
        value = af.variable(loop.var)
        for source, masks, step in zip(
            (p, v, together), (plan.outer, plan.inner, everything), steps, strict=True
        ):
            value = af.add(value, _part(source, masks, step[i], old.extent, i))
        alone = plan.outer[i] & (sum(m * 1 for m in plan.outer) == 1)
        uses: Uses = {loop.var: 1, parallel.var: plain(alone * 1), vector.var: 0}
        tree.define(old, value, uses)
        loop.absent = np.asarray(loop.absent) | fused
    _insert_above(loops[0], parallel, np.any(plan.outer, axis=0) | plan.whole)
    _insert_below(block, vector, np.any(plan.inner, axis=0) | plan.whole)


def _steps(extents: list[IntLike], masks: list[Mask]) -> list[Ints]:
    """Iterations of the fused loops inside each loop."""
    out: list[Ints] = []
    step = np.ones((), np.int64)
    for extent, mask in reversed(list(zip(extents, masks, strict=True))):
        out.insert(0, step)
        step = step * np.where(mask, extent, 1)
    return out


def _product(extents: list[IntLike], masks: list[Mask]) -> Ints:
    out = np.ones((), np.int64)
    for extent, mask in zip(extents, masks, strict=True):
        out = out * np.where(mask, extent, 1)
    return out


def _part(source: Affine, masks: list[Mask], step: Ints, extent: IntLike, place: int) -> Affine:
    """What a fused loop says of one of the loops that it is made of, 0 where it is not."""
    mask = masks[place]
    if not np.any(mask):
        return Affine()
    quotient = floordiv(source, plain(np.where(mask, step, 1)))
    first = mask & ~np.any(np.broadcast_arrays(*masks[:place], np.False_), axis=0)
    inside = floormod(quotient, plain(np.where(mask, extent, 1)))
    return af.mul(af.select(first, quotient, inside), plain(mask * 1))


def _insert_above(loop: LoopNode, made: LoopNode, where: Mask) -> None:
    if not np.any(where):
        return
    replace_child(loop, [made])
    made.body, loop.parent = [loop], made
    made.marked, made.absent = where, ~where


def _insert_below(block: Block, made: LoopNode, where: Mask) -> None:
    if not np.any(where):
        return
    replace_child(block, [made])
    made.body, block.parent = [block], made
    made.marked, made.absent = where, ~where


def contiguous_loops(tree: Tree, block: Block, loops: list[LoopNode]) -> Ints:
    """Innermost loops over which every access of the block is contiguous."""
    values = dict(enumerate(tree.values(block)))
    least: IntLike = len(loops) + 1
    accesses: list[tuple[int, tuple[Expr, ...]]] = []
    for key in block.reads:
        found = block.loads_of(key)
        if found:
            accesses.append((key, found[0].indices))
    accesses.append((block.buffer, block.indices))
    for key, indices in accesses:
        sums = [~_has_difference(evaluate_index(index, values)) for index in indices]
        forms = [index_uses(tree, block, index) for index in indices]
        strides = _strides(forms, sums, tree.buffers[key].shape)
        least = np.minimum(least, _loops_of(loops, strides))
    return np.asarray(least)


def _loops_of(loops: list[LoopNode], strides: dict[LoopVar, IntLike]) -> IntLike:
    number: IntLike = 0
    expected: IntLike = 0  # 0: no loop inside moves the access
    open_: Mask | np.bool_ = np.bool_(True)
    for loop in reversed(loops):
        stride, exists = strides.get(loop.var, 0), ~np.asarray(loop.absent)
        if isinstance(stride, int) and stride == 0:
            number = number + (open_ & exists) * 1
            continue
        moves = np.not_equal(stride, 0)
        unmoved = np.equal(expected, 0)
        begins = unmoved & (np.equal(stride, 1) | np.equal(number, 0))
        fits = begins | (~unmoved & np.equal(stride, expected))
        open_ = open_ & (~exists | ~moves | fits)
        here = open_ & exists
        number = number + here * 1
        expected = af.where(here & moves, stride * loop.extent, expected)
    return number


def _strides(
    forms: list[Uses], sums: list[Mask | np.bool_], shape: tuple[IntLike, ...]
) -> dict[LoopVar, IntLike]:
    """Elements between neighbouring iterations of every loop; of the last dimension it moves.

    ``forms``: variables in the index of each dimension; ``sums``: where it is a sum. TVM looks
    through sums and products but not through a difference, which is what an index that starts below
    zero becomes: no loop moves it.
    """
    out: dict[LoopVar, IntLike] = {}
    row: IntLike = 1
    for form, is_sum, size in reversed(list(zip(forms, sums, shape, strict=True))):
        for var, scale in form.items():
            here, known = af.where(is_sum, scale * row, 0), out.get(var, 0)
            out[var] = af.where(np.equal(known, 0), here, known)
        row = row * size
    return out


def _has_difference(index: Affine) -> Mask | np.bool_:
    out = np.less(index.base, 0)
    for t in index.terms:
        out = out | np.less(t.coef, 0)
    return out
