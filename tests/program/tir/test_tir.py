"""Block trees by hand: loops, regions and buffers whose answers are arithmetic."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.tir import primitives
from pruner.program.tir.locations import allowed_locations, settle
from pruner.program.tir.lower import buffer_places, lower
from pruner.program.tir.parallelize import PragmaSettings, rewrite_parallel_vectorize_unroll
from pruner.program.tir.postprocs import Fetch, rewrite_cooperative_fetch, rewrite_reduction_blocks
from pruner.program.tir.rfactor import rfactor
from pruner.program.tir.trace import Instruction, Ref, TraceProgram, apply_groups
from tests.program.tir_trees import blurred, extents, matmul


def tile(tree, block, factors):
    """Split the block's loops; returns the new loops of each."""
    return [
        primitives.split(tree, loop, list(f))
        for loop, f in zip(tree.path(block), factors, strict=True)
    ]


def box(tree, key):
    return [np.asarray(r.hi - r.lo + 1).tolist() for r in buffer_places(tree)[key].box]


def values_at(tree, block, point):
    """The iterators of a block where its loops stand at ``point``, by hand."""
    at = {loop.var: value for loop, value in zip(tree.path(block), point, strict=True)}

    def evaluate(a):
        total = a.base
        for t in a.terms:
            inner = at[t.index] if t.index in at else evaluate(t.index)
            total += t.coef * ((inner % t.upper) // t.lower)
        return int(np.asarray(total).reshape(-1)[0])

    return [evaluate(value) for value in tree.values(block)]


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
        primitives.bind(x0, "blockIdx.x")
        primitives.bind(x1, "threadIdx.x")
        staged = primitives.cache_read(tree, block, 0, scope, [block])
        primitives.compute_at(tree, staged, x1)
        sizes[scope] = box(tree, staged.buffer)
    assert sizes == {"shared": [8, 8], "local": [2, 8]}


def test_overlapping_reads_make_the_tile_one_wider():
    tree, mid, out = blurred(64)
    ((outer, _),) = tile(tree, out, [(None, np.array([4, 16]))])
    primitives.compute_at(tree, mid, outer)
    assert box(tree, mid.buffer) == [[5, 17]]


def test_inlining_doubles_the_work_and_drops_the_buffer():
    tree, mid, out = blurred(64)
    primitives.compute_inline(tree, mid)
    (store,) = lower(tree).stores
    assert store.buffer.name == "out"
    assert [b.name for b in tree.blocks()] == ["out"]
    assert len(out.loads_of(0)) == 2


def test_a_fetch_padded_to_whole_threads_keeps_the_size_of_its_buffer():
    tree, block = matmul(64, 64, 64)
    (x0, x1), (y,), (k0, _) = tile(tree, block, [(None, 6), (64,), (None, 5)])
    primitives.bind(x0, "blockIdx.x")
    primitives.reorder(tree, [x0, k0, x1, y])
    staged = primitives.cache_read(tree, block, 0, "shared", [block])
    primitives.compute_at(tree, staged, k0)
    primitives.fuse(tree, tree.path(staged)[2:])
    rewrite_cooperative_fetch(tree, Fetch(staged, np.array([4, 3]), 8, None))
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


def test_rfactor_sums_in_two_steps():
    tree, block = matmul(8, 8, 64)
    *_, (k0, k1) = tile(tree, block, [(8,), (8,), (None, np.array([4, 16]))])
    partial = rfactor(tree, block, k1, 2)
    assert [np.asarray(e).tolist() for e, _ in extents(tree, partial)] == [8, 8, [16, 4], [4, 16]]
    assert [np.asarray(e).tolist() for e, _ in extents(tree, block)] == [8, 8, [4, 16]]
    assert box(tree, partial.buffer) == [8, 8, [4, 16]]
    assert k0.var not in {v for slot in (0,) for v in tree.uses(partial, slot)}
    point = values_at(tree, partial, (3, 5, 2, 1))
    assert point[partial.iters.index(partial.iters[3])] == 2 * 4 + 1  # k = k0 * 4 + k1


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


def test_locations_skip_unit_loops_and_settle_before_what_is_gone():
    tree, mid, out = blurred(64)
    tile(tree, out, [(None, np.array([64, 4]), 2)])
    allowed = allowed_locations(tree, mid)
    assert sorted(allowed) == [-2, -1, 0, 1, 2]
    assert np.broadcast_to(allowed[0], 2).tolist() == [False, True]
    assert settle(tree, mid, np.array([0, 0])).tolist() == [-1, 0]


def test_candidates_that_need_different_trees_are_replayed_apart():
    tree, _, _ = blurred(64)
    program = TraceProgram(
        tree,
        (
            Instruction("GetSBlock", (), ("mid", "main"), (0,)),
            Instruction("SampleComputeLocation", (Ref(0),), (), (1,), slot=0),
            Instruction("ComputeAt", (Ref(0), Ref(1)), (1, -1), ()),
        ),
        num_slots=1,
        is_gpu=False,
    )
    groups, refused = apply_groups(program, np.array([[-2], [-1], [0], [-1]]))
    assert not refused
    assert sorted(rows.tolist() for rows, _ in groups) == [[0], [1, 3], [2]]
    blocks = {rows.tolist()[0]: [b.name for b in t.blocks()] for rows, t in groups}
    assert blocks == {0: ["out"], 1: ["mid", "out"], 2: ["mid", "out"]}


def test_an_unknown_instruction_is_refused_by_name():
    tree, _, _ = blurred(8)
    program = TraceProgram(tree, (Instruction("Tensorize", (), (), ()),), 0, is_gpu=False)
    groups, refused = apply_groups(program, np.zeros((2, 0), np.int64))
    assert groups == []
    assert refused == {0: "trace-instruction", 1: "trace-instruction"}


def test_a_chain_with_another_child_cannot_be_fused():
    tree, mid, out = blurred(64)
    ((outer, _),) = tile(tree, out, [(None, 4)])
    primitives.compute_at(tree, mid, outer)
    with pytest.raises(UnsupportedProgram, match="loop-chain"):
        primitives.fuse(tree, tree.path(out))
