"""Schedule primitives on block trees by hand: loops and blocks whose answers are arithmetic."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.tir import primitives
from pruner.program.tir.lower import lower
from tests.program.tir_trees import blurred, extents, matmul, tile, values_at


def test_split_reorder_fuse_enumerate_every_iteration_once():
    tree, block = matmul(6, 4, 2)
    (x0, x1), (y0, y1), _ = tile(tree, block, [(None, 2), (2, None), (None, 1)])
    primitives.reorder(tree, [x0, y0, x1, y1])
    primitives.fuse(tree, [x0, y0])
    found = {
        tuple(values_at(tree, block, p)) for p in np.ndindex(*[e for e, _ in extents(tree, block)])
    }
    assert found == set(np.ndindex(6, 4, 2))


def test_a_tile_that_does_not_divide_covers_the_loop():
    tree, block = matmul(10, 4, 2)
    (outer, inner), *_ = tile(tree, block, [(None, 4), (None, 4), (None, 2)])
    assert (outer.extent, inner.extent) == (3, 4)


def test_inlining_doubles_the_work_and_drops_the_buffer():
    tree, mid, out = blurred(64)
    primitives.compute_inline(tree, mid)
    (store,) = lower(tree).stores
    assert store.buffer.name == "out"
    assert [b.name for b in tree.blocks()] == ["out"]
    assert len(out.loads_of(0)) == 2


def test_a_chain_with_another_child_cannot_be_fused():
    tree, mid, out = blurred(64)
    ((outer, _),) = tile(tree, out, [(None, 4)])
    primitives.compute_at(tree, mid, outer)
    with pytest.raises(UnsupportedProgram, match="loop-chain"):
        primitives.fuse(tree, tree.path(out))
