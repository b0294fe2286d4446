"""Scheduled programs, executed loop by loop, compute what their operator computes.

Every value is a small integer, so sums are exact in any order. A store that ran too often, too
rarely, at the wrong place or before its operands were there changes a value (operands that are not
there yet are NaN).
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruner.program.dag.operators import dag_for_workload
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import parse_steps
from tests.program.dag_values import dag_values
from tests.program.nest_values import Executed
from tests.program.schedules import Steps

MATMUL = '["matmul_layer", 4, 10, 6]'  # 4 x 6 outputs, sums of 10; stages A, B, compute
CONV = '["conv2d_layer", 1, 2, 4, 4, 3, 3, 3, 1, "SAME"]'
lengths = st.integers(1, 5)


def executed(key: str, *programs: Steps) -> list[Executed]:
    """Every program of one skeleton, executed; its output is compared with the operator's."""
    dag = dag_for_workload(key, ())
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(-4, 5, stage.shape).astype(float) for stage in dag.stages if stage.body is None
    ]
    parsed = [parse_steps(steps) for steps in programs]
    schedule = apply(dag, parsed[0][0], np.array([d for _, d in parsed], np.int64))
    nests = lower(schedule)
    assert np.all(nests.resolved)
    places = [stage.key for stage in schedule.pool if stage.body is None]
    given_ = dict(zip(places, inputs, strict=True))
    found = []
    for program in range(len(programs)):
        reduce = {
            stage.key: [int(np.ravel(np.broadcast_to(r.extent, len(programs)))[program])
                        for r in stage.reduce]
            for stage in schedule.pool
        }  # fmt: skip
        run = Executed(nests, given_, reduce, program)
        (output,) = (stage.key for stage in schedule.pool if stage.is_output)
        np.testing.assert_array_equal(run.arrays[output], dag_values(dag, inputs)[-1])
        found.append(run)
    return found


def test_without_a_schedule():
    (run,) = executed(MATMUL, [])
    assert run.runs[("compute", "init")] == 4 * 6
    assert run.runs[("compute", "update")] == 4 * 6 * 10


@settings(max_examples=12)
@given(st.lists(st.tuples(lengths, lengths, lengths), min_size=2, max_size=2), st.randoms())
def test_ragged_tiles_in_any_order(tiles, random):
    order = list(range(6))
    random.shuffle(order)
    programs = [
        [
            ["SP", 2, 0, 4, [i], 1],
            ["SP", 2, 2, 6, [j], 1],
            ["SP", 2, 4, 10, [k], 1],
            ["RE", 2, order],
        ]
        for i, j, k in tiles
    ]
    for run in executed(MATMUL, *programs):
        assert run.runs[("compute", "update")] == 4 * 6 * 10


@settings(max_examples=10)
@given(lengths, lengths, st.booleans())
def test_fused_loops_that_are_split_again(outer, inner, from_inside):
    steps = [
        ["FU", 2, [0, 1]],
        ["SP", 2, 0, 24, [outer, inner], int(from_inside)],
    ]
    executed(MATMUL, steps)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_tile_that_is_accumulated_locally_and_copied_out(depth):
    """The cache's split follows that of the output stage, as in Ansor's sketches."""
    programs = [
        [
            ["CHW", 2, "local"],
            ["SP", 2, 0, 4, [1, i], 1],
            ["SP", 2, 3, 6, [1, j], 1],
            ["SP", 2, 6, 10, [5], 1],
            ["RE", 2, [0, 3, 1, 4, 6, 2, 5, 7]],
            ["FSP", 3, 0, 1, 2],
            ["FSP", 3, 3, 2, 2],
            ["RE", 3, [0, 3, 1, 4, 2, 5]],
            ["CA", 2, 3, depth],
        ]
        for i, j in ((2, 3), (1, 2), (4, 6))
    ]
    for run in executed(MATMUL, *programs):
        assert run.runs[("compute", "plain")] == 4 * 6


@pytest.mark.parametrize("tile", [2, 5])
def test_an_operand_that_is_staged_before_it_is_read(tile):
    steps = [
        ["SP", 2, 2, 10, [tile], 1],
        ["RE", 2, [0, 2, 1, 3]],
        ["CHR", 0, "shared", [2]],
        ["CA", 1, 3, 1],
    ]
    (run,) = executed(MATMUL, steps)
    assert run.runs[("A.shared", "plain")] == 4 * 10  # every element once


@pytest.mark.parametrize("inline", [True, False])
def test_a_padded_input_inlined_or_computed_where_it_is_needed(inline):
    pad = ["CI", 1] if inline else ["CA", 1, 3, 2]
    (run,) = executed(CONV, [pad])
    assert (("pad_temp", "plain") in run.runs) is not inline


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_reduction_in_two_steps(axis):
    """``rfactor``: partial sums over the outer part of k, for every inner one."""
    programs = [[["SP", 2, 2, 10, [k], 1], ["RF", 2, 3, axis]] for k in (2, 5)]
    runs = executed(MATMUL, *programs)
    for k, run in zip((2, 5), runs, strict=True):
        assert run.runs[("compute.rf", "update")] == 4 * 6 * 10
        assert run.runs[("compute", "update")] == 4 * 6 * k
