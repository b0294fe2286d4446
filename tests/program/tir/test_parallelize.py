"""Which loops become parallel, vectors and unrolled, by hand."""

import numpy as np
import pytest

from pruner.program.dag.expr import Axis, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer
from pruner.program.tir import primitives
from pruner.program.tir.parallelize import rewrite_parallel_vectorize_unroll
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree, insert
from tests.program.tir_trees import extents, matmul, nested, tile


def test_loops_become_parallel_and_vectors_as_far_as_each_candidate_goes():
    tree, block = matmul(64, 64, 64)
    tree.num_programs = 2
    (x0, x1), (y0, y1), (k0, k1) = tile(
        tree, block, [(None, np.array([8, 64])), (None, np.array([16, 64])), (64, None)]
    )
    primitives.reorder(tree, [x0, y0, k0, x1, k1, y1])
    wishes = {"parallel": 16, "vectorize": 32}
    rewrite_parallel_vectorize_unroll(tree, **wishes)
    marked = {mark: np.asarray(e).tolist() for e, mark in extents(tree, block) if mark}
    # first: 8 x 4 outer iterations exceed 16; second: both outer loops have one iteration
    assert marked["parallel"] == [32, 1]
    assert marked["vectorize"] == [16, 1]


def copies(sizes, shared):
    """Two copies of an array [depth, N] sizes, the second inside ``shared`` loops of the first."""
    shape = tuple(sizes)
    buffers = [Buffer(key, name, "float32", shape, is_param=True) for key, name in enumerate("abc")]
    tree = Tree(buffers, LoopNode(LoopVar("root")), num_programs=sizes.shape[1])
    axes = tuple(Axis(d) for d in range(len(shape)))
    blocks = []
    for key in (1, 2):
        block = Block(
            name=buffers[key].name,
            iters=tuple(BlockIter("spatial", extent) for extent in shape),
            bindings=[],
            buffer=key,
            indices=axes,
            value=Load(0, axes, "float32"),
            reads=[0],
        )
        blocks.append(nested(tree, block, shape))
    first, second = blocks
    if shared:
        around = tree.path(first)[:shared]
        own = tree.path(second)[shared:]
        node = own[0] if own else second
        tree.root.body.pop()
        insert(around[-1], len(around[-1].body), node)
        kept = [loop.var for loop in (*around, *own)]
        second.bindings = [Binding(af.variable(var), {var: 1}) for var in kept]
    return tree, first


def by_hand(sizes, single, *, most, lanes):
    """Iterations of the parallel loop and of the vector, one loop after another as TVM counts.

    AdjustParallelVectorize: loops from outside until they exceed ``most``, the one that does so
    included; loops from inside that stay within ``lanes``. Counts of nothing but unit loops are
    none; where both exceed the loops, the parallel one gives way. All loops are fused and then
    split where both are there and every loop is usable.
    """
    outer, product = 0, 1
    for size, alone in zip(sizes, single, strict=True):
        outer, product = outer + 1, product * size
        if product > most or not alone:
            break
    outer = outer if product > 1 else -1
    inner, product = 0, 1
    for size, alone in zip(reversed(sizes), reversed(single), strict=True):
        if not alone:
            break
        product *= size
        if product > lanes:
            break
        inner += 1
    inner = inner if product > 1 else -1
    total = int(np.prod(sizes))
    if outer >= 0 and inner >= 0 and all(single):
        return -(-total // lanes), lanes
    if outer >= 0 and inner >= 0:
        outer = min(outer, len(sizes) - inner)
    return int(np.prod(sizes[: max(outer, 0)])), int(np.prod(sizes[len(sizes) - max(inner, 0) :]))


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_one_loop_after_another(seed):
    """Copies of an array in nests of any sizes, a second copy in a loop of some of them."""
    rng = np.random.default_rng(seed)
    depth, num = int(rng.integers(1, 6)), 30
    sizes = rng.choice([1, 2, 3, 4, 8, 64], (depth, num))
    shared = int(rng.integers(0, depth + 1))  # loops around both copies
    most, lanes = int(rng.choice([1, 8, 100])), int(rng.choice([2, 16, 64]))
    tree, first = copies(sizes, shared)
    rewrite_parallel_vectorize_unroll(tree, parallel=most, vectorize=lanes)
    made = {mark: np.broadcast_to(extent, num) for extent, mark in extents(tree, first) if mark}
    single = [level != shared - 1 for level in range(depth)]
    for n in range(num):
        found = tuple(int(made.get(mark, np.ones(num))[n]) for mark in ("parallel", "vectorize"))
        assert found == by_hand(sizes[:, n].tolist(), single, most=most, lanes=lanes), n
