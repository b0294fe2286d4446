"""Loop extents and buffer sizes of small programs, by hand."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.dag.operators import dag_for_workload
from pruner.program.nests import LoopNests
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs, parse_steps
from tests.program.schedules import Steps, conv_steps, matmul_steps

MATMUL = '["matmul_layer", 12, 5, 8]'  # m, k, n


def nests_of(key: str, *programs: Steps) -> LoopNests:
    """Nests of programs with one skeleton."""
    parsed = [parse_steps(steps) for steps in programs]
    decisions = np.array([d for _, d in parsed], np.int64)
    return lower(apply(dag_for_workload(key, ()), parsed[0][0], decisions))


def numbers(values) -> list[int]:
    return [int(np.ravel(value)[0]) for value in values]


def sizes(nests: LoopNests) -> dict[str, list[int]]:
    """Allocated elements per axis by stage name, of the first program."""
    return {a.buffer.name: numbers(a.extents) for a in nests.allocations.values()}


def loops(nests: LoopNests, name: str, kind: str) -> list[int]:
    """Extents of the loops that are present around a store."""
    found = [s for s in nests.stores if s.buffer.name == name and s.kind == kind]
    assert len(found) == 1
    return numbers(loop.extent for loop in found[0].loops if np.all(loop.present))


def test_a_split_that_does_not_divide_rounds_the_outer_loop_up():
    nests = nests_of('["relu_layer", 10, 3]', [["SP", 1, 0, 10, [4], 1]])
    assert loops(nests, "compute", "plain") == [3, 4, 3]


def test_a_split_from_outside_gives_the_outer_count():
    nests = nests_of('["relu_layer", 10, 3]', [["SP", 1, 0, 10, [4], 0]])
    assert loops(nests, "compute", "plain") == [4, 3, 3]


def test_fused_loops_multiply_and_come_apart_again():
    nests = nests_of('["relu_layer", 4, 6]', [["FU", 1, [0, 1]]])
    assert loops(nests, "compute", "plain") == [24]
    (store,) = nests.stores
    row, column = store.slots
    assert (row.terms[0].lower, row.terms[0].upper >= 1 << 60) == (6, True)  # f // 6
    assert (column.terms[0].lower, column.terms[0].upper) == (1, 6)  # f % 6


# i: 16 = 2 x [1, 4, 1, 2], j: 1024 = 32 x [1, 8, 2, 2], k: 1024 = 8 x [64, 2]
TILED = matmul_steps([1, 4, 1, 2], [1, 8, 2, 2], [64, 2], vectors=(4, 1))


def test_tiles_of_a_matmul():
    nests = nests_of('["matmul_layer", 16, 1024, 1024]', TILED)
    found = sizes(nests)
    assert found["A.shared"] == [8, 128]  # 4 threads x 2 rows; 64 x 2 of k
    assert found["B.shared"] == [128, 32]  # 8 threads x 4 columns
    assert found["compute.local"] == [2, 4]  # what one thread keeps
    assert found["compute"] == [16, 1024]


def test_a_cooperative_fetch_shares_the_tile_among_the_threads():
    nests = nests_of('["matmul_layer", 16, 1024, 1024]', TILED)
    # 64 blocks, 1 virtual thread, 32 threads, 8 steps of k; then steps, threads, vector
    assert loops(nests, "B.shared", "plain") == [64, 1, 32, 8, 128 * 32 // (4 * 32), 32, 4]
    assert loops(nests, "A.shared", "plain") == [64, 1, 32, 8, 8 * 128 // 32, 32]


def test_a_fetch_that_does_not_divide_is_padded_to_full_threads():
    steps = matmul_steps([1, 4, 1, 1], [1, 6, 1, 1], [5, 1])
    nests = nests_of('["matmul_layer", 8, 10, 12]', steps)
    assert sizes(nests)["A.shared"] == [4, 5]
    assert loops(nests, "A.shared", "plain")[-1:] == [24]  # 20 elements, 24 threads
    assert sizes(nests)["B.shared"] == [5, 6]
    assert loops(nests, "B.shared", "plain")[-2:] == [2, 24]  # 30 elements, 24 threads


def test_a_convolution_tile_has_a_halo():
    space = [[1, 1, 1, 1], [1, 4, 1, 1], [1, 2, 1, 1], [1, 4, 1, 2]]
    nests = nests_of(
        '["conv2d_layer", 1, 8, 8, 8, 16, 3, 3, 1, "SAME"]',
        conv_steps(space, [[2, 2], [3, 1], [1, 3]]),
    )
    found = sizes(nests)
    assert found["pad_temp.shared"] == [1, 4, 2 + 2, 8 + 2]
    assert found["input1.shared"] == [4, 4, 3, 3]


def test_a_size_that_depends_on_a_loop_is_marked_and_not_guessed():
    # rows of a 4 x 6 matrix made under a loop over 5 of its 24 elements: one row or two
    key = '["relu_layer", 4, 6]'
    steps = [["CHW", 1, "local"], ["FU", 2, [0, 1]], ["SP", 2, 0, 24, [5], 1], ["CA", 1, 2, 0]]
    assert not np.any(nests_of(key, steps).resolved)
    steps[2] = ["SP", 2, 0, 24, [6], 1]
    whole_rows = nests_of(key, steps)
    assert np.all(whole_rows.resolved)
    assert sizes(whole_rows)["compute.local"] == [1, 6]


def test_an_attach_point_that_does_not_exist_is_refused():
    with pytest.raises(UnsupportedProgram, match="step-mismatch"):
        nests_of('["relu_layer", 4, 6]', [["CHW", 1, "local"], ["CA", 1, 2, 7]])


SPLIT = ["SP", 2, 0, 12, [3], 1]


@pytest.mark.parametrize(
    "steps",
    [
        [["SP", 2, 0, 12, [3], 2]],
        [["FFSP", 2, 0, [], 0, 2]],
        [["PR", 2, 0, "auto_unroll_max_step$-1"]],
        [["PR", 2, 0, f"auto_unroll_max_step${2**63}"]],
        [["PR", 2, 3, "auto_unroll_max_step$16"]],
        [["FU", 2, [0, 2]]],
        [["FU", 2, [1, 2, 3]]],
        [["FU", 2, [0, 1, 2**62]]],
        [SPLIT, ["FSP", 2, 2, 0, 0]],
        [SPLIT, ["FSP", 2, 2, 0, 3]],
        [["SP", 2, 2, 5, [5], 1], ["RF", 2, 3, 4]],
        [["CHW", 2, "local"], ["CA", 2, 2, 0]],
        [["CHW", 2, "local"], ["CA", 2, 3, 0], ["CA", 3, 2, 0]],
        [["SP", 2, 0, 12, [1] * 64, 1], ["SP", 2, 0, 12, [1] * 64, 1]],
    ],
    ids=repr,
)
def test_indices_and_flags_that_mean_nothing_are_refused(steps):
    """A stage inside itself would have no end; a fusion of 2^62 loops no memory."""
    groups, unreadable = group_programs([steps])
    if unreadable:
        assert unreadable[0].reason == "malformed-step"
        return
    with pytest.raises(UnsupportedProgram, match="step-mismatch"):
        lower(apply(dag_for_workload(MATMUL, ()), groups[0].skeleton, groups[0].decisions))


def test_an_extent_that_the_loop_does_not_have_is_noted_where_it_is_known():
    def wrong(*programs):
        (group,), _ = group_programs(programs)
        dag = dag_for_workload(MATMUL, ())
        found = apply(dag, group.skeleton, group.decisions, group.extents).contradicted
        return np.broadcast_to(found, len(programs)).tolist()

    assert wrong([SPLIT], [["SP", 2, 0, 13, [3], 1]]) == [False, True]
    # 12 = 4 * 3, and the part of 4 is split again; then all of 12 * 8
    again = [SPLIT, ["SP", 2, 0, 4, [2], 1]]
    assert wrong(again, [SPLIT, ["SP", 2, 0, 3, [2], 1]]) == [False, True]
    fused = ["FU", 2, [0, 1]]
    assert wrong([fused, ["SP", 2, 0, 96, [8], 0]], [fused, ["SP", 2, 0, 97, [8], 0]]) == [
        False,
        True,
    ]
    assert wrong([SPLIT], [["SP", 2, 0, 0, [3], 1]]) == [False, False]  # Ansor did not infer it
    # inside another stage it depends on what comes later, and Ansor keeps an older number
    inside = [["CHW", 2, "local"], ["CA", 2, 3, 0]]
    assert wrong([*inside, SPLIT], [*inside, ["SP", 2, 0, 13, [3], 1]]) == [False, False]
