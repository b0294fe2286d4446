"""Symbols against the products that the paper's Fig. 3 prints, and against the general engine."""

import numpy as np
import pytest

from pruner.features.symbols.closed.draft import DraftPlan, Symbols
from pruner.features.symbols.closed.formula import Evaluator, Formula, ceil, equal, minimum, slot
from pruner.features.symbols.closed.tiling import tile_skeleton
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.features.recorded import recorded_task
from tests.features.tiling_check import check_tiling

A_SHARED, B_SHARED, UPDATE, WRITE = 0, 1, 2, 3
CASES = {  # m, n, k, rows and columns as (vthread, thread, outer, inner), reduce (outer to inner)
    "e1": (128, 128, 128, (1, 8, 2, 2), (1, 8, 2, 2), (4, 2)),
    "e2": (1024, 1024, 1024, (2, 8, 2, 2), (2, 8, 2, 2), (4, 4)),
    "e3": (1024, 960, 1024, (1, 8, 4, 4), (1, 6, 2, 5), (8, 4)),
}


def symbols_of(name: str) -> Symbols:
    m, n, k, rows, columns, reduce = CASES[name]
    groups, _ = group_programs([matmul_steps(m, k, n, rows, columns, reduce)])
    plan = DraftPlan(matmul_dag(m, k, n), groups[0].skeleton)
    assert plan.names == ("A.shared", "B.shared", "compute.local", "compute")
    return plan.symbols(groups[0].decisions)


@pytest.mark.parametrize("name", CASES)
def test_symbols_are_the_products_of_fig_3(name):
    m, n, k, (i2, i1, i3, i4), (j2, j1, j3, j4), (k1, k2) = CASES[name]
    i0, j0, k0 = m // (i1 * i2 * i3 * i4), n // (j1 * j2 * j3 * j4), k // (k1 * k2)
    s = symbols_of(name)

    def value(symbol: str, statement: int) -> float:
        return float(s[symbol][statement, 0])

    rows, columns = i2 * i3 * i4, j2 * j3 * j4
    assert value("l0_mem_alloc", UPDATE) == rows * columns + rows + columns
    # The figure counts multiply-adds, we count both operations.
    macs = i2 * i3 * i4 * j2 * j3 * j4 * k0 * k1 * k2
    assert value("l0_comp_count", UPDATE) == 2 * macs
    assert value("l1_mem_alloc", A_SHARED) == i1 * i2 * i3 * i4 * k1 * k2
    assert value("l1_mem_alloc", B_SHARED) == j1 * j2 * j3 * j4 * k1 * k2
    assert value("l1_para_info", UPDATE) == i1 * j1
    assert value("l2_mem_footprint", A_SHARED) == m * j0 * k
    assert value("l2_mem_footprint", B_SHARED) == n * i0 * k
    assert value("l2_mem_footprint", WRITE) == m * n
    assert value("l2_para_info", UPDATE) == i0 * j0
    assert value("l2_trans_dim", A_SHARED) == k1 * k2
    assert value("l2_trans_dim", B_SHARED) == j1 * j2 * j3 * j4
    assert value("l2_comp_count", UPDATE) == 2 * m * n * k


def test_the_worked_example_in_numbers():
    s = symbols_of("e1")  # pruner-facts 2.6
    assert s["l0_mem_alloc"][UPDATE, 0] == 24
    assert s["l1_mem_alloc"][:, 0].sum() == 512
    assert s["l2_mem_footprint"][A_SHARED, 0] == 65536
    assert s["l2_comp_count"][UPDATE, 0] == 4_194_304
    assert [s["l2_trans_dim"][i, 0] for i in (A_SHARED, B_SHARED)] == [8, 32]
    assert symbols_of("e2")["l0_mem_alloc"][UPDATE, 0] == 80
    assert symbols_of("e3")["l0_mem_alloc"][UPDATE, 0] == 186


def test_ragged_fetches_count_what_is_issued():
    s = symbols_of("e3")  # 4096 elements by 48 threads: 86 rounds, 32 steps, 128 blocks
    assert s["issued"][A_SHARED, 0] == 86 * 48 * 32 * 128
    assert s["l2_mem_footprint"][A_SHARED, 0] == 4096 * 32 * 128


@pytest.mark.parametrize("name", CASES)
def test_every_loop_agrees_with_the_general_engine(name):
    m, n, k, rows, columns, reduce = CASES[name]
    steps = [
        matmul_steps(m, k, n, rows, columns, reduce, vectors=v) for v in ((1, 1), (2, 4), (3, 5))
    ]
    group = group_programs(steps)[0][0]
    tiling = tile_skeleton(matmul_dag(m, k, n), group.skeleton)
    assert check_tiling(tiling, group.decisions) == []


RECORDED = [
    "k80/pool_avg_128_168_83_83_1_1_2_VALID",
    "v100/conv2d_add_relu_128_128_58_58_128_3_3_2_VALID",
    "v100/reduction_128_4032_11_11_2_3_False",
    "a100/depthwise_conv2d_128_84_83_83_5_5_2_SAME",
]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_programs_agree_with_the_general_engine(shared, name):
    dag, steps = recorded_task(shared, name)
    for group in group_programs(steps[:200])[0]:
        assert check_tiling(tile_skeleton(dag, group.skeleton), group.decisions) == []


def test_a_wrong_formula_is_found():
    m, n, k, rows, columns, reduce = CASES["e1"]
    group = group_programs([matmul_steps(m, k, n, rows, columns, reduce)])[0][0]
    tiling = tile_skeleton(matmul_dag(m, k, n), group.skeleton)
    leaf = tiling.schedule.pool[-1].leaves[-1]
    tiling.extents[leaf] = tiling.extents[leaf] * 2.0
    assert len(check_tiling(tiling, group.decisions)) == 1


def test_formulas_fold_and_evaluate():
    a, b = slot(0), slot(1)
    assert Formula(64.0) / (a * b) * b == Formula(64.0) / a
    assert (a + b) - b == a
    values = Evaluator([ceil(a / b), minimum(a, b), equal(a, b), (a + b) * 2.0])(
        np.array([[7, 2], [4, 4]])
    )
    assert values.T.tolist() == [[4, 2, 0, 18], [1, 4, 1, 16]]
