"""What the postprocessors of GPU traces leave behind, by hand."""

import numpy as np

from pruner.program.nests import Mark
from pruner.program.tir import primitives
from pruner.program.tir.postprocs import rewrite_cooperative_fetch, rewrite_reduction_blocks
from tests.program.tir_trees import box, extents, matmul, tile


def test_a_fetch_padded_to_whole_threads_keeps_the_size_of_its_buffer():
    tree, block = matmul(64, 64, 64)
    (x0, x1), (y,), (k0, _) = tile(tree, block, [(None, 6), (64,), (None, 5)])
    x0.mark = Mark.BLOCK_X
    primitives.reorder(tree, [x0, k0, x1, y])
    staged = primitives.cache_read(tree, block, 0, "shared", [block])
    primitives.compute_at(tree, staged, k0)
    primitives.fuse(tree, tree.path(staged)[2:])
    rewrite_cooperative_fetch(tree, staged, np.array([4, 3]), 8, None)
    fetch = extents(tree, staged)[2:]
    # 30 elements: no vectors of 4, so 8 threads take 4 rounds; vectors of 3 take 2 rounds
    assert fetch[0][0].tolist() == [4, 2]
    assert fetch[1] == (8, "threadIdx.x")
    assert fetch[2][0].tolist() == [1, 3]
    assert box(tree, staged.buffer) == [6, 5]


def test_the_initialisation_stands_before_the_first_reduction_loop():
    tree, block = matmul(8, 8, 8)
    (x0, x1), (y,), (k,) = tile(tree, block, [(None, 2), (8,), (8,)])
    primitives.reorder(tree, [x0, k, x1, y])
    rewrite_reduction_blocks(tree)
    names = [b.name for b in tree.blocks()]
    assert names == ["C_init", "C_update"]
    assert extents(tree, tree.find("C_init")) == [(4, None), (2, None), (8, None)]
