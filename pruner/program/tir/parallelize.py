"""Parallel, vector and unrolled loops of CPU programs (rewrite_parallel_vectorize_unroll.cc).

How many loops are fused depends on their extents, so candidates that fuse different numbers of
loops need different trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.program.affine import Affine, IntLike
from pruner.program.expr import Expr
from pruner.program.regions import evaluate_index
from pruner.program.tir.access import index_uses
from pruner.program.tir.loops import fuse, split
from pruner.program.tir.reduction import is_data_parallel
from pruner.program.tir.tree import Block, LoopNode, Tree, uniform

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the annotations of the root block ask for; None: not asked.

    ``parallel``: iterations of the parallel loop, ``vectorize``: lanes, ``unroll``: steps.
    """

    parallel: IntLike | None
    vectorize: IntLike | None
    unroll: IntLike | None


def rewrite_parallel_vectorize_unroll(tree: Tree, wishes: Wishes) -> None:
    """Fuse and mark the loops of every block. Raises :class:`Diverges`."""
    for block in list(tree.blocks()):
        loops = tree.path(block)
        if not loops:
            continue
        outer, inner = _numbers(tree, block, loops, wishes)
        if outer == inner == len(loops):
            assert wishes.vectorize is not None
            made = split(tree, fuse(tree, loops), [None, wishes.vectorize])
            made[0].mark, made[1].mark = "parallel", "vectorize"
        else:
            if outer > 0:
                fuse(tree, loops[:outer]).mark = "parallel"
            if inner > 0:
                fuse(tree, loops[len(loops) - inner :]).mark = "vectorize"
        if wishes.unroll is not None and block.reduces:
            tree.path(block)[0].unroll = wishes.unroll


def _numbers(tree: Tree, block: Block, loops: list[LoopNode], wishes: Wishes) -> tuple[int, int]:
    """How many outer loops become parallel and how many inner ones vectors (-1: none)."""
    if wishes.parallel is None and wishes.vectorize is None:
        return _NONE, _NONE
    count = len(loops)
    free = [_is_free(loop) for loop in loops]
    parallel_kind = [is_data_parallel(tree, loop) for loop in loops]
    fusible = _contiguous(tree, block, loops)
    outer: IntLike = _NONE
    inner: IntLike = _NONE
    if wishes.parallel is not None:
        outer = _outer_loops(loops, free, parallel_kind, wishes.parallel)
    if wishes.vectorize is not None:
        inner = _inner_loops(loops, free, parallel_kind, wishes.vectorize, fusible)
    if wishes.parallel is not None and wishes.vectorize is not None:
        single = [len(loop.body) == 1 for loop in loops]
        rewritable = sum(
            np.asarray(f & kind & one) * 1
            for f, kind, one in zip(free, parallel_kind, single, strict=True)
        )
        everything = np.equal(rewritable, count) & np.equal(fusible, count)
        some = np.greater(inner, _NONE) & np.greater(outer, _NONE)
        least = np.where(some, np.minimum(outer, count - np.asarray(inner)), outer)
        outer = np.where(everything & some, count, least)
        inner = np.where(everything & some, count, inner)
    both = uniform((np.asarray(outer) + 1) * (count + 2) + np.asarray(inner) + 1)
    return both // (count + 2) - 1, both % (count + 2) - 1


def _is_free(loop: LoopNode) -> Mask | np.bool_:
    """Neither annotated nor bound."""
    if loop.mark is not None or loop.annotations:
        return np.bool_(False)
    return np.bool_(True) if loop.unroll is None else np.less_equal(loop.unroll, 0)


def _outer_loops(
    loops: list[LoopNode], free: list[Mask | np.bool_], kinds: list[bool], most: IntLike
) -> Ints:
    """Outer loops fused until their iterations exceed ``most``; -1 where they have but one."""
    number, product = np.zeros((), np.int64), np.ones((), np.int64)
    open_: Mask | np.bool_ = np.bool_(True)
    for loop, is_free, parallel in zip(loops, free, kinds, strict=True):
        open_ = open_ & is_free & parallel
        number = number + open_ * 1
        product = np.where(open_, product * loop.extent, product)
        open_ = open_ & np.less_equal(product, most) & (len(loop.body) == 1)
    return np.where(np.equal(product, 1), _NONE, number)


def _inner_loops(
    loops: list[LoopNode],
    free: list[Mask | np.bool_],
    kinds: list[bool],
    most: IntLike,
    fusible: IntLike,
) -> Ints:
    """Inner loops fused while the access stays contiguous and within ``most`` lanes."""
    number, product = np.zeros((), np.int64), np.ones((), np.int64)
    open_: Mask | np.bool_ = np.bool_(True)
    for loop, is_free, parallel in reversed(list(zip(loops, free, kinds, strict=True))):
        open_ = open_ & is_free & parallel & (len(loop.body) == 1) & np.less(number, fusible)
        product = np.where(open_, product * loop.extent, product)
        open_ = open_ & np.less_equal(product, most)
        number = number + open_ * 1
    return np.where(np.equal(product, 1), _NONE, number)


def _contiguous(tree: Tree, block: Block, loops: list[LoopNode]) -> IntLike:
    """Innermost loops over which every access of the block is contiguous."""
    least: IntLike = len(loops) + 1
    accesses: list[tuple[int, tuple[Expr, ...]]] = []
    for key in block.reads:
        found = block.loads_of(key)
        if found:
            accesses.append((key, found[0].indices))
    accesses.append((block.buffer, block.indices))
    for key, indices in accesses:
        least = np.minimum(least, _contiguous_in(tree, block, loops, key, indices))
    return least


def _contiguous_in(
    tree: Tree, block: Block, loops: list[LoopNode], key: int, indices: tuple[Expr, ...]
) -> Ints:
    strides = _strides(tree, block, loops, tree.buffers[key].shape, indices)
    number = np.zeros((), np.int64)
    open_: Mask | np.bool_ = np.bool_(True)
    expected: IntLike = 0  # 0: no loop inside moves the access
    for loop, stride in reversed(list(zip(loops, strides, strict=True))):
        still = np.equal(stride, 0)
        first = np.equal(expected, 0)
        fits = np.where(first, np.equal(stride, 1) | np.equal(number, 0), stride == expected)
        open_ = open_ & (still | fits)
        number = number + open_ * 1
        expected = np.where(open_ & ~still, stride * loop.extent, expected)
    return number


def _strides(
    tree: Tree,
    block: Block,
    loops: list[LoopNode],
    shape: tuple[int, ...],
    indices: tuple[Expr, ...],
) -> list[Ints]:
    """Elements between neighbouring iterations of every loop; of the last dimension it moves.

    TVM looks through sums and products but not through a difference, which is what an index that
    starts below zero becomes: no loop moves it.
    """
    values = dict(enumerate(tree.values(block)))
    forms = [index_uses(tree, block, index) for index in indices]
    sums = [~_has_difference(evaluate_index(index, values)) for index in indices]
    out: list[Ints] = []
    for loop in loops:
        stride, row = np.zeros((), np.int64), 1
        for form, is_sum, size in reversed(list(zip(forms, sums, shape, strict=True))):
            here = np.asarray(form.get(loop.var, 0)) * row * is_sum
            stride = np.where(np.equal(stride, 0), here, stride)
            row *= size
        out.append(stride)
    return out


def _has_difference(index: Affine) -> Mask | np.bool_:
    out: Mask | np.bool_ = np.less(index.base, 0)
    for t in index.terms:
        out = out | np.less(t.coef, 0)
    return out
