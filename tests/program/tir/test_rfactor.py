"""A reduction in two steps: loops, buffers and the index of the partial sums."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.tir.rfactor import rfactor
from tests.program.tir_trees import box, extents, matmul, tile, values_at


@pytest.mark.parametrize("axis", [2, -1])  # TVM counts places from either end
def test_rfactor_sums_in_two_steps(axis):
    tree, block = matmul(8, 8, 64)
    *_, (k0, k1) = tile(tree, block, [(8,), (8,), (None, np.array([4, 16]))])
    partial = rfactor(tree, block, k1, axis)
    assert [np.asarray(e).tolist() for e, _ in extents(tree, partial)] == [8, 8, [16, 4], [4, 16]]
    assert [np.asarray(e).tolist() for e, _ in extents(tree, block)] == [8, 8, [4, 16]]
    assert box(tree, partial.buffer) == [8, 8, [4, 16]]
    assert k0.var not in {v for slot in (0,) for v in tree.uses(partial, slot)}
    point = values_at(tree, partial, (3, 5, 2, 1))
    assert point[partial.iters.index(partial.iters[3])] == 2 * 4 + 1  # k = k0 * 4 + k1


@pytest.mark.parametrize("axis", [3, -4])
def test_a_place_that_the_partial_result_lacks_is_refused(axis):
    tree, block = matmul(8, 8, 64)
    with pytest.raises(UnsupportedProgram, match="rfactor-axis"):
        rfactor(tree, block, tree.path(block)[-1], axis)
