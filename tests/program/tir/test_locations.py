"""Where a block may be computed."""

import numpy as np
import pytest

from pruner.program.dag.expr import Axis, Binary, Const, Load
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer, Mark
from pruner.program.tir import primitives
from pruner.program.tir.locations import alike, allowed_locations, candidate_loops, settle, shared
from pruner.program.tir.parallelize import rewrite_parallel_vectorize_unroll
from pruner.program.tir.postprocs import rewrite_reduction_blocks
from pruner.program.tir.tree import Block, BlockIter, LoopNode, Tree
from tests.program.tir_trees import blurred, box, extents, matmul, nested, tile


def test_locations_skip_unit_loops_and_settle_before_what_is_gone():
    tree, mid, out = blurred(64)
    tile(tree, out, [(None, np.array([64, 4]), 2)])
    allowed = allowed_locations(tree, mid)
    assert sorted(allowed) == [-2, -1, 0, 1, 2]
    assert np.broadcast_to(allowed[0], 2).tolist() == [False, True]
    assert settle(tree, mid, np.array([0, 0])).tolist() == [-1, 0]


def in_two_loops(num=3):
    """out in loops of 4, 4 and 4; mid under the first, the second or the third of them."""
    tree, mid, out = blurred(64)
    tree.num_programs = num
    ((first, second, third),) = tile(tree, out, [(None, 4, 4)])
    taken = np.arange(num)
    loop = shared(tree, mid, taken)
    primitives.compute_at(tree, mid, loop)
    return tree, mid, out, (first, second, third)


def of_program(tree, block, n):
    found = [int(np.broadcast_to(e, tree.num_programs)[n]) for e, _ in extents(tree, block)]
    return [extent for extent in found if extent > 1]


def test_loops_around_a_block_are_those_of_its_location():
    tree, mid, out, _ = in_two_loops()
    # out reads mid[i] and mid[i + 1]: one element more than it has iterations inside
    assert [of_program(tree, mid, n) for n in range(3)] == [[4, 17], [4, 4, 5], [4, 4, 4, 2]]
    assert [of_program(tree, out, n) for n in range(3)] == [[4, 4, 4]] * 3
    assert box(tree, mid.buffer) == [[17, 5, 2]]


def test_a_loop_that_is_not_around_counts_no_location():
    tree, mid, _, _ = in_two_loops()
    data = primitives.cache_read(tree, mid, 0, "global", [])
    names = [loop.var.name for loop in candidate_loops(tree, data)]
    assert names == ["l0_0", "l0_1", "l0_2", "ax0"]
    allowed = allowed_locations(tree, data)
    offered = {n: np.broadcast_to(x, 3).tolist() for n, x in allowed.items() if n >= 0}
    assert offered == {
        0: [True, True, True],
        1: [True, True, True],  # in the first program its own loop: out's second is not around
        2: [False, True, True],
        3: [False, False, True],
    }
    assert settle(tree, data, np.array([1, 1, 3])).tolist() == [3, 1, 3]


def test_loops_run_in_parallel_up_to_where_a_block_stands():
    tree, mid, _, _ = in_two_loops()
    wishes = {"parallel": 1000}
    rewrite_parallel_vectorize_unroll(tree, **wishes)
    marked = {mark: np.asarray(e).tolist() for e, mark in extents(tree, mid) if mark}
    assert marked == {"parallel": [4, 16, 64]}


def test_reductions_and_what_stands_between_loops_part_locations():
    tree, block = matmul(64, 64, 64)
    copy = primitives.cache_read(tree, block, 0, "global", [])
    (x0, x1), (y0, y1), (k0, k1) = tile(tree, block, [(8, 8)] * 3)
    primitives.reorder(tree, [x0, y0, k0, k1, x1, y1])
    assert alike(tree, copy, np.array([-2, -1, 0, 1, 2, 3, 4, 5])).tolist() == [
        -2, -1, -1, -1, 2, 2, 4, 4,
    ]  # fmt: skip
    primitives.reorder(tree, [x1, k1])  # a spatial loop between reductions
    loops = [loop.var.name for loop in tree.path(block)]
    assert loops == ["l0_0", "l1_0", "l2_0", "l0_1", "l2_1", "l1_1"]
    assert alike(tree, copy, np.arange(6)).tolist() == [-1, -1, 2, 2, 2, 5]
    primitives.reorder(tree, [k1, x1])
    other = primitives.cache_read(tree, block, 1, "global", [])
    primitives.compute_at(tree, other, k0)
    assert alike(tree, copy, np.arange(6)).tolist() == [-1, -1, 2, 3, 4, 4]


def test_what_does_not_stand_directly_before_its_consumer_stays_apart():
    tree, block = matmul(64, 64, 64)
    copy = primitives.cache_read(tree, block, 0, "global", [])
    assert alike(tree, copy, np.array([-1, 0, 1])).tolist() == [-1, -1, -1]
    tree.path(copy)[0].mark = Mark.PARALLEL  # as loops that were decided before
    assert alike(tree, copy, np.array([-1, 0, 1])).tolist() == [-1, 0, 0]
    tree.path(copy)[0].mark = None
    primitives.cache_read(tree, block, 1, "global", [])  # between the two
    assert alike(tree, copy, np.array([-1, 0, 1])).tolist() == [-1, 0, 0]


def summed(num, order):
    """out[i, j] = rows[i] + 1 with rows[i] = sum of data[i, k], whose loops stand in ``order``."""
    rows_of = [Buffer(0, "data", "float32", (64, 32), is_param=True)]
    rows_of.append(Buffer(1, "rows", "float32", (64,)))
    rows_of.append(Buffer(2, "out", "float32", (64, 16), is_param=True))
    tree = Tree(rows_of, LoopNode(LoopVar("root")), num_programs=num)
    i, k = Axis(0), Axis(1)
    total = Binary("add", Load(1, (i,), "float32"), Load(0, (i, k), "float32"), "float32")
    rows = Block(
        name="rows",
        iters=(BlockIter("spatial", 64), BlockIter("reduce", 32)),
        bindings=[],
        buffer=1,
        indices=(i,),
        value=total,
        init=Const(0.0, "float32"),
        reads=[0],
    )
    more = Binary("add", Load(1, (i,), "float32"), Const(1.0, "float32"), "float32")
    out = Block(
        name="out",
        iters=(BlockIter("spatial", 64), BlockIter("spatial", 16)),
        bindings=[],
        buffer=2,
        indices=(i, k),
        value=more,
        reads=[1],
    )
    nested(tree, rows, (64, 32))
    nested(tree, out, (64, 16))
    tile(tree, out, [(4, 16), (16,)])
    (i0, i1), (k0, k1) = tile(tree, rows, [(8, 8), (4, 8)])
    named = {"i0": i0, "i1": i1, "k0": k0, "k1": k1}
    primitives.reorder(tree, [named[name] for name in order])
    return tree, rows


def finished(taken, order, wishes):
    """By program: loops around every block, how many of them are around the block before, too, and
    what is stored of the rows.

    A loop that a program lacks, or that has one iteration, is none.
    """
    tree, rows = summed(len(taken), order)
    if taken.max() >= 0:
        primitives.compute_at(tree, rows, shared(tree, rows, taken))
    rewrite_parallel_vectorize_unroll(tree, **wishes)
    rewrite_reduction_blocks(tree)
    stored = box(tree, 1)[0]

    def here(value, n):
        return int(np.broadcast_to(value, len(taken))[n])

    def described(n):
        out, before = [], []
        for block in tree.blocks():
            path = [loop for loop in tree.path(block) if here(loop.extent, n) > 1]
            loops = [(here(loop.extent, n), loop.mark) for loop in path]
            out.append((block.name, loops, len(set(path) & set(before))))
            before = path
        return out, here(stored, n)

    return [described(n) for n in range(len(taken))]


@pytest.mark.parametrize("order", ["i0 i1 k0 k1", "i0 k0 i1 k1", "k0 i0 k1 i1", "k0 k1 i0 i1"])
@pytest.mark.parametrize(("parallel", "vectorize"), [(16, 4), (1000, 64), (1, 1000)])
def test_a_block_that_stays_shares_a_tree_with_those_that_move(order, parallel, vectorize):
    wishes = {"parallel": parallel, "vectorize": vectorize}
    taken = np.array([-1, 0, 1, -1, 2, 0])
    tree, rows = summed(len(taken), order.split())
    assert len(set(alike(tree, rows, taken))) == 1
    together = finished(taken, order.split(), wishes)
    for n, place in enumerate(taken):
        assert together[n] == finished(np.array([place]), order.split(), wishes)[0]
