"""Buffers of lowered trees: what is stored where, by hand."""

import numpy as np

from pruner.program.nests import Mark
from pruner.program.tir import primitives
from pruner.program.tir.lower import lower
from tests.program.tir_trees import blurred, box, extents, matmul, tile


def test_a_staged_tile_is_what_the_block_reads_for_every_candidate():
    tree, block = matmul(64, 64, 64)
    rows, depth = np.array([4, 8, 16]), np.array([2, 64, 1])
    (x0, x1), (y0, y1), (k0, k1) = tile(tree, block, [(None, rows), (None, 32), (None, depth)])
    primitives.reorder(tree, [x0, y0, k0, x1, y1, k1])
    staged = primitives.cache_read(tree, block, 0, "shared", [block])
    primitives.compute_at(tree, staged, k0)
    path = extents(tree, staged)
    assert path[3][0].tolist() == rows.tolist()
    assert path[4][0].tolist() == depth.tolist()
    assert box(tree, staged.buffer) == [rows.tolist(), depth.tolist()]


def test_a_shared_tile_spans_all_threads_a_local_one_does_not():
    sizes = {}
    for scope in ("shared", "local"):
        tree, block = matmul(64, 64, 8)
        (x0, x1, _), *_ = tile(tree, block, [(None, 4, 2), (64,), (8,)])
        x0.mark = Mark.BLOCK_X
        x1.mark = Mark.THREAD_X
        staged = primitives.cache_read(tree, block, 0, scope, [block])
        primitives.compute_at(tree, staged, x1)
        sizes[scope] = box(tree, staged.buffer)
    assert sizes == {"shared": [8, 8], "local": [2, 8]}


def test_overlapping_reads_make_the_tile_one_wider():
    tree, mid, out = blurred(64)
    ((outer, _),) = tile(tree, out, [(None, np.array([4, 16]))])
    primitives.compute_at(tree, mid, outer)
    assert box(tree, mid.buffer) == [[5, 17]]


def test_a_loop_that_no_program_has_is_not_in_the_nests():
    """A unit loop is: whether it stands inside or outside of others is known of it."""
    tree, block = matmul(1, 1, 8)
    tree.path(block)[0].absent = np.ones(1, bool)
    for store in lower(tree).stores:
        assert [loop.extent for loop in store.loops] == [1, 8]
    tree.num_programs, tree.path(block)[0].absent = 2, np.array([True, False])
    tree.places.clear()
    assert all(len(store.loops) == 3 for store in lower(tree).stores)
