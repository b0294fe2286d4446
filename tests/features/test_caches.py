"""Dataflow rows of CPU programs, by hand, against simulated caches, and where they must not be."""

import numpy as np
import pytest

from pruner.features.batch import FeatureSpec, featurize_nests
from pruner.features.columns import DATAFLOW_COLUMNS, DATAFLOW_INDEX, text_flags
from pruner.program.nests import Mark
from pruner.program.tir import primitives
from pruner.program.tir.lower import lower
from tests.program.tir_trees import matmul, tile

NO_FLAGS = text_flags("")


def rows_of(tree, dataflow="paper"):
    num = tree.num_programs
    found = featurize_nests(
        [(np.arange(num), lower(tree))],
        num,
        FeatureSpec(dataflow=dataflow),
        workload=NO_FLAGS,
        failures={},
    )
    assert found.valid.all()
    return found.dataflow


def value(rows, row, name):
    """Before the logarithm."""
    return float(2.0 ** rows[0, row, DATAFLOW_INDEX[name]] - 1)


def tiled(m, n, k, order, factors, num=1):
    """A matmul whose loops i, j, k are split once and stand in the order given (``"i0"`` ...)."""
    tree, block = matmul(m, n, k)
    tree.num_programs = num
    (i0, i1), (j0, j1), (k0, k1) = tile(tree, block, factors)
    loops = {"i0": i0, "i1": i1, "j0": j0, "j1": j1, "k0": k0, "k1": k1}
    primitives.reorder(tree, [loops[name] for name in order])
    return tree


def test_a_tiled_product_by_hand():
    # 256 x 256 x 256 floats: A, B, C have 256 KiB each, more than L1 and less than L2 in all.
    # Inside i1 j1 k1 (32, 32, 32): 3 tiles of 4 KiB, which L1 holds; inside k0, too:
    # A 32 x 256 and B 256 x 32 are 32 KiB each, which it does not.
    tree = tiled(256, 256, 256, ("i0", "j0", "k0", "i1", "j1", "k1"), ([8, 32],) * 3)
    rows = rows_of(tree)
    a_l1, a_l2, result_l1 = 2, 1, 8
    assert value(rows, a_l2, "bytes") == pytest.approx(256 * 256 * 4)  # once: all fits
    assert value(rows, a_l2, "unique_bytes") == pytest.approx(256 * 256 * 4)
    # L1: the loop around the tile is k0. A's 32 x 256 crosses for each of 64 (i0, j0).
    assert value(rows, a_l1, "bytes") == pytest.approx(64 * 32 * 256 * 4)
    assert value(rows, a_l1, "alloc_size") == pytest.approx(32 * 32 * 4)
    assert value(rows, a_l1, "reuse_dis_bytes") == pytest.approx(3 * 32 * 32 * 4)
    assert value(rows, a_l1, "lines") == pytest.approx(64 * 32 * 256 * 4 / 64)
    # C's tile stays while k0 runs: it crosses once for each of 64.
    assert value(rows, result_l1, "bytes") == pytest.approx(64 * 32 * 32 * 4)
    assert value(rows, 7, "float_ops") == pytest.approx(2 * 256**3)
    assert value(rows, 0, "float_ops") == 0.0


@pytest.mark.parametrize(
    ("n", "split", "b_lines", "c_lines"),
    [
        (1, [1, 1], 8 * 256 // 16, 8 * 32 // 16),  # [N, 1]: neighbours, though rows of one each
        (7, [1, 7], 8 * 256 * 7 // 16, 8 * 32 * 7 // 16),  # whole rows of 7
        (7, [7, 1], 8 * 7 * 256, 8 * 7 * 32),  # one of 7 in a row: each is in a line of its own
        (48, [3, 16], 8 * 3 * 256, 8 * 3 * 32),  # a third of a row
    ],
)
def test_rows_that_are_touched_whole_are_one_run_of_lines(n, split, b_lines, c_lines):
    # A 256 x 256, B 256 x n: 32 x 32 of A and 32 rows of B and C fit into L1, with k0 they do not.
    # B's 256 rows cross for each of 8 i0 and j0, C's 32 rows, too. 16 floats are a line.
    order = ("i0", "j0", "k0", "i1", "j1", "k1")
    rows = rows_of(tiled(256, n, 256, order, ([8, 32], split, [8, 32])))
    (of_b,) = (row for row in (2, 4) if value(rows, row, "unique_bytes") < 256 * 256 * 4 - 1)
    assert value(rows, of_b, "lines") == pytest.approx(b_lines)
    assert value(rows, 8, "lines") == pytest.approx(c_lines)


def test_a_row_names_its_level_and_its_access():
    rows = rows_of(tiled(64, 64, 64, ("i0", "j0", "k0", "i1", "j1", "k1"), ([4, 16],) * 3))[0]
    columns = ["location.global", "location.shared", "location.local"]
    found = rows[:, [DATAFLOW_INDEX[name] for name in columns]].argmax(axis=1)
    assert found.tolist() == [2, 0, 1, 0, 1, 1, 1, 2, 2, 0]  # those of the GPU pattern
    reads = rows[:, DATAFLOW_INDEX["acc_type.read"]]
    assert reads.tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    assert rows[:, DATAFLOW_INDEX["acc_type.read_write"]].tolist() == (1 - reads).tolist()


def test_the_order_of_loops_moves_what_crosses():
    """The dot-product order streams B for every row of C; with k outside a tile of it is held."""
    factors = [64, 1], [512, 1], [512, 1]
    inner_k = rows_of(tiled(64, 512, 512, ("i0", "i1", "j0", "j1", "k0", "k1"), factors))
    factors = [2, 32], [16, 32], [16, 32]
    tiles = rows_of(tiled(64, 512, 512, ("j0", "k0", "i0", "i1", "j1", "k1"), factors))
    moved = [value(rows, 2, "bytes") + value(rows, 4, "bytes") for rows in (inner_k, tiles)]
    assert moved[0] == pytest.approx(64 * 512 * 512 * 4 + 64 * 512 * 4, rel=1e-4)
    assert moved[1] == pytest.approx(512 * 512 * 4 + 16 * 64 * 512 * 4, rel=1e-4)


def test_rows_do_not_depend_on_the_batch():
    factors, order = np.array([1, 2, 4, 8]), ("i0", "j0", "k0", "i1", "j1", "k1")
    together = rows_of(tiled(64, 64, 64, order, ([64 // factors, factors],) * 3, num=4))
    for place, factor in enumerate(factors.tolist()):
        pairs = ([64 // factor, factor],) * 3
        alone = rows_of(tiled(64, 64, 64, order, pairs))
        np.testing.assert_allclose(together[place], alone[0], rtol=1e-6)


def test_operands_trade_places_in_one_batch():
    """A low tile reads its second operand more often, a narrow one its first."""
    high, wide = np.array([1, 64, 8]), np.array([64, 1, 8])
    order = ("i0", "j0", "k0", "i1", "j1", "k1")
    together = rows_of(
        tiled(64, 64, 64, order, ([64 // high, high], [64 // wide, wide], [64, 1]), num=3)
    )
    moved = []
    for place, (i, j) in enumerate(zip(high.tolist(), wide.tolist(), strict=True)):
        alone = rows_of(tiled(64, 64, 64, order, ([64 // i, i], [64 // j, j], [64, 1])))
        np.testing.assert_allclose(together[place], alone[0], rtol=1e-6)
        moved.append([value(alone, row, "bytes") for row in (5, 6)])
    assert moved[0][0] > moved[0][1]
    assert moved[1] == moved[0]  # the first row is of whichever moves more


def test_gpu_programs_and_the_releases_rows_are_as_they_were():
    tree = tiled(64, 64, 64, ("i0", "j0", "k0", "i1", "j1", "k1"), ([4, 16],) * 3)
    assert not rows_of(tree, "official").any()
    (block,) = tree.blocks()
    tree.path(block)[0].mark = Mark.BLOCK_X
    assert not rows_of(tree).any()  # without shared buffers the pattern is not there


def test_columns_that_mean_something_are_set():
    rows = rows_of(tiled(256, 256, 256, ("i0", "j0", "k0", "i1", "j1", "k1"), ([8, 32],) * 3))
    never = {"reuse_type.serial", "acc_type.write"}
    unset = {c.name for n, c in enumerate(DATAFLOW_COLUMNS) if not rows[..., n].any()}
    assert unset <= never
    assert np.isfinite(rows).all()
