"""Loop nests of small CPU programs, some of whose statements have the same structure."""

from dataclasses import replace

import numpy as np

from pruner.program.dag.expr import Axis, Binary, Call, Const, rewrite
from pruner.program.dag.operators import dag_for_workload
from pruner.program.nests import Mark
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower as te_lower
from pruner.program.te.skeleton import group_programs
from pruner.program.tir import primitives
from pruner.program.tir.lower import lower
from tests.features.test_caches import tiled
from tests.program.tir_trees import blurred

ORDER = ("i0", "j0", "k0", "i1", "j1", "k1")


def product(order, *sizes, mark=None):
    """A 64 x 64 x 64 product with inner tiles of ``sizes`` in i, j and k, a list a program."""
    factors = [[64 // np.array(size), np.array(size)] for size in sizes]
    tree = tiled(64, 64, 64, order, factors, num=len(sizes[0]))
    (block,) = tree.blocks()
    tree.path(block)[0].mark = mark
    return lower(tree)


def changed(change, size=64):
    """Nests of two stages, the first of which is not as it was."""
    tree, mid, out = blurred(size)
    change(tree, mid)
    (outer, _) = primitives.split(tree, tree.path(out)[0], [None, 8])
    primitives.compute_at(tree, mid, outer)
    return lower(tree)


def as_it_was(tree, block):
    pass


def with_a_sum_more(tree, block):
    block.value = Binary("add", block.value, Const(1.0, "float32"), "float32")


def of_halves(tree, block):
    tree.buffers[block.buffer] = replace(tree.buffers[block.buffer], dtype="float16")


def padded(size, axis=None):
    """A 3x3 convolution of NCHW tensors, padded in its loops; axis: of another condition."""
    dag = dag_for_workload(f'["conv2d_layer", 1, 8, {size}, {size}, 8, 3, 3, 1, "SAME"]', ())
    steps = [["CI", 1], ["RE", 3, [0, 2, 4, 5, 6, 1, 3]]]
    group = group_programs([steps])[0][0]
    nests = te_lower(apply(dag, group.skeleton, group.decisions))

    def rule(node):
        return replace(node, args=(near, *node.args[1:])) if isinstance(node, Call) else node

    if axis is not None:
        near = Binary("lt", Axis(axis), Const(8, "int32"), "bool")
        for store in nests.stores:
            store.value = rewrite(store.value, rule)
    return nests


NESTS = {
    "tiles": product(ORDER, [4, 8, 16], [16, 4, 2], [8, 8, 32]),
    "others": product(ORDER, [1, 64], [64, 1], [2, 4]),
    "one": product(ORDER, [32], [32], [32]),
    "parallel": product(ORDER, [4, 8], [8, 8], [4, 4], mark=Mark.PARALLEL),
    "order": product(("j0", "i0", "k0", "i1", "j1", "k1"), [4, 8], [16, 4], [8, 8]),
    "stages": changed(as_it_was),
    "larger": changed(as_it_was, 128),
    "sum": changed(with_a_sum_more),
    "halves": changed(of_halves),
    "padded": padded(14),
    "wider": padded(28),
    "row": padded(14, axis=2),
    "column": padded(14, axis=3),
}
