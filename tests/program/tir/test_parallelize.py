"""Which loops become parallel, vectors and unrolled, by hand."""

import numpy as np

from pruner.program.tir import primitives
from pruner.program.tir.parallelize import PragmaSettings, rewrite_parallel_vectorize_unroll
from tests.program.tir_trees import extents, matmul, tile


def test_loops_become_parallel_and_vectors_as_far_as_each_candidate_goes():
    tree, block = matmul(64, 64, 64)
    (x0, x1), (y0, y1), (k0, k1) = tile(
        tree, block, [(None, np.array([8, 64])), (None, np.array([16, 64])), (64, None)]
    )
    primitives.reorder(tree, [x0, y0, k0, x1, k1, y1])
    wishes = PragmaSettings(parallel=16, vectorize=32, unroll=None)
    rewrite_parallel_vectorize_unroll(tree, wishes)
    marked = {mark: np.asarray(e).tolist() for e, mark in extents(tree, block) if mark}
    # first: 8 x 4 outer iterations exceed 16; second: both outer loops have one iteration
    assert marked["parallel"] == [32, 1]
    assert marked["vectorize"] == [16, 1]
