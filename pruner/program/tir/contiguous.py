"""How many inner loops of a block touch memory contiguously (``AdjustParallelVectorize``)."""

from __future__ import annotations

import numpy as np

from pruner.arrays import IntLike, Ints, Mask
from pruner.program.dag.expr import Expr
from pruner.program.index.affine import Affine
from pruner.program.index.regions import evaluate_index
from pruner.program.tir.regions import index_uses
from pruner.program.tir.tree import Block, LoopNode, Tree


def contiguous_loops(tree: Tree, block: Block, loops: list[LoopNode]) -> Ints:
    """Innermost loops over which every access of the block is contiguous."""
    least = np.full((), len(loops) + 1)
    accesses: list[tuple[int, tuple[Expr, ...]]] = []
    for key in block.reads:
        found = block.loads_of(key)
        if found:
            accesses.append((key, found[0].indices))
    accesses.append((block.buffer, block.indices))
    for key, indices in accesses:
        least = np.minimum(least, _loops_of(tree, block, loops, key, indices))
    return least


def _loops_of(
    tree: Tree, block: Block, loops: list[LoopNode], key: int, indices: tuple[Expr, ...]
) -> Ints:
    strides = _strides(tree, block, loops, tree.buffers[key].shape, indices)
    number, open_ = np.zeros((), np.int64), np.ones((), bool)
    expected = np.zeros((), np.int64)  # 0: no loop inside moves the access
    for loop, stride in reversed(list(zip(loops, strides, strict=True))):
        exists = ~np.asarray(loop.absent)
        still = stride == 0
        begins = (expected == 0) & ((stride == 1) | (number == 0))
        fits = begins | ((expected != 0) & (stride == expected))
        open_ = open_ & (~exists | still | fits)
        number = number + (open_ & exists) * 1
        expected = np.where(open_ & exists & ~still, stride * loop.extent, expected)
    return number


def _strides(
    tree: Tree,
    block: Block,
    loops: list[LoopNode],
    shape: tuple[IntLike, ...],
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
        stride, row = np.zeros((), np.int64), np.ones((), np.int64)
        for form, is_sum, size in reversed(list(zip(forms, sums, shape, strict=True))):
            here = np.asarray(form.get(loop.var, 0)) * row * is_sum
            stride = np.where(stride == 0, here, stride)
            row = row * size
        out.append(stride)
    return out


def _has_difference(index: Affine) -> Mask:
    out = np.asarray(np.less(index.base, 0))
    for t in index.terms:
        out = out | np.less(t.coef, 0)
    return out
