"""Symbols from loop nests against closed formulas, and where only nests can tell."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.features.symbols.closed.draft import COLUMNS, DraftPlan
from pruner.features.symbols.gpu import nest_symbols
from pruner.features.symbols.statement import nest_statements
from pruner.program.dag.operators import dag_for_workload
from pruner.program.te.lower import build_nests
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.features.recorded import recorded_task


def random_steps(rng, size, count):
    """Tilings of a matrix product; fetches by three need not come out even."""
    return [
        matmul_steps(
            *size,
            tuple(int(x) for x in rng.choice([1, 2, 4], 4)),
            tuple(int(x) for x in rng.choice([1, 2, 4], 4)),
            tuple(int(x) for x in rng.choice([1, 2, 8], 2)),
            vectors=tuple(int(x) for x in rng.choice([1, 2, 3], 2)),
            unroll=int(rng.choice([0, 64, 512])),
        )
        for _ in range(count)
    ]


def differences(dag, steps, known=()):
    """Columns where nests and closed formulas differ, statement by statement."""
    out = set()
    for group in group_programs(steps)[0]:
        plan = DraftPlan(dag, group.skeleton)
        closed = plan.symbols(group.decisions)
        nests = build_nests(dag, group.skeleton, group.decisions)
        ours = nest_symbols(nests)
        keys = [statement.stage.key for statement in nest_statements(nests)]
        for row, statement in enumerate(plan.tiling.statements):
            place = keys.index(statement.stage.key)
            assert ours.scopes[place] == closed.scopes[row]
            assert ours.reductions[place] == closed.reductions[row]
            for name in set(COLUMNS) - set(known):
                if not np.allclose(ours[name][place], closed[name][row], rtol=1e-9):
                    out.add((statement.stage.name, name))
    return out


def test_every_column_is_that_of_the_closed_formulas():
    size = (512, 256, 512)  # m, k, n
    steps = random_steps(np.random.default_rng(0), size, 80)
    m, k, n = size
    assert differences(matmul_dag(m, k, n), steps) == set()


PARTLY_FUSED = ("l2_mem_footprint", "issued", "l2_trans_dim", "lane_extent")
RECORDED = {
    "v100/conv2d_add_relu_128_128_58_58_128_3_3_2_VALID": (),
    "a100/depthwise_conv2d_128_84_83_83_5_5_2_SAME": (),
    "v100/reduction_128_4032_11_11_2_3_False": ("lane_extent",),
    "k80/pool_avg_128_168_83_83_1_1_2_VALID": PARTLY_FUSED,
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_programs_have_the_columns_of_the_closed_formulas(shared, name):
    dag, steps = recorded_task(shared, name)
    assert differences(dag, steps[:200], RECORDED[name]) == set()


def test_a_factored_reduction_has_symbols_from_nests_only():
    rows, columns, inner = 64, 128, 8
    dag = dag_for_workload(f'["reduction_layer", [{rows}, {columns}], 1, false]', ())
    steps = [["SP", 1, 1, columns, [inner], 1], ["RF", 1, 2, 1]]
    group = group_programs([steps])[0][0]
    with pytest.raises(UnsupportedProgram, match="rfactor"):
        DraftPlan(dag, group.skeleton)
    nests = build_nests(dag, group.skeleton, group.decisions)
    symbols = nest_symbols(nests)
    # every element is added once into one of `inner` parts, and every part once into the result
    assert symbols["l2_comp_count"][:, 0].tolist() == [rows * columns, rows * inner]
    assert symbols["unique"][0, 0] == rows * columns + rows * inner


def test_symbols_of_a_program_do_not_depend_on_its_neighbours():
    dag = matmul_dag(512, 256, 512)
    steps = random_steps(np.random.default_rng(1), (512, 256, 512), 20)
    group = group_programs(steps)[0][0]
    together = nest_symbols(build_nests(dag, group.skeleton, group.decisions)).values
    for row in range(len(group.rows)):
        nests = build_nests(dag, group.skeleton, group.decisions[row : row + 1])
        assert np.allclose(nest_symbols(nests).values[:, :, 0], together[:, :, row])
