"""Step lists become typed primitives and a decision vector."""

import numpy as np
import pytest

from pruner.errors import UnknownStep, UnsupportedProgram
from pruner.program.te import skeleton
from pruner.program.te.skeleton import Slot, Step, group_programs, parse_steps


def tiled(inner, unroll):
    """Split, fuse, bind, unroll: the skeleton of an elementwise GPU kernel."""
    return [
        ["FU", 1, [0, 1]],
        ["SP", 1, 0, 64, [inner], 1],
        ["AN", 1, 1, 6],
        ["PR", 1, 0, f"auto_unroll_max_step${unroll}"],
    ]


def test_lengths_and_unroll_depth_are_decisions_in_step_order():
    skeleton, decisions = parse_steps(tiled(32, 512))
    assert skeleton == (
        Step("FU", (1, (0, 1))),
        Step("SP", (1, 0, (Slot(0),), True)),
        Step("AN", (1, 1, "threadIdx.x")),
        Step("PR", (1, 0, Slot(1))),
    )
    assert decisions == [32, 512]


@pytest.mark.parametrize(
    ("step", "error", "reason"),
    [
        (["PPT", 1], UnknownStep, "unknown-step"),
        (["SP", 1, 0], UnknownStep, "unknown-step"),
        (["AN", 1, 0, 99], UnsupportedProgram, "malformed-step"),
        (["SP", 1, 0, 8, [None], 1], UnsupportedProgram, "malformed-step"),
        (["PR", 1, 0, "import_c"], UnsupportedProgram, "unknown-pragma"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(step, error, reason):
    with pytest.raises(error) as caught:
        parse_steps([step])
    assert caught.value.reason == reason


def test_programs_group_by_skeleton_and_keep_their_rows():
    other = [["FU", 1, [0, 1]], ["SP", 1, 0, 64, [4, 2], 1]]
    groups, failures = group_programs([tiled(32, 0), other, tiled(8, 16), [["PPT"]], tiled(2, 512)])
    assert [g.rows.tolist() for g in groups] == [[0, 2, 4], [1]]
    np.testing.assert_array_equal(groups[0].decisions, [[32, 0], [8, 16], [2, 512]])
    np.testing.assert_array_equal(groups[1].decisions, [[4, 2]])
    assert {row: error.reason for row, error in failures.items()} == {3: "unknown-step"}


def test_the_recorded_extent_is_not_part_of_the_skeleton():
    changed = tiled(32, 0)
    changed[1][3] = 128
    groups, _ = group_programs([tiled(32, 0), changed])
    assert len(groups) == 1


def test_a_bad_unroll_depth_quarantines_its_program_only():
    groups, failures = group_programs([tiled(32, 0), tiled(32, "deep"), tiled(4, 16)])
    assert groups[0].rows.tolist() == [0, 2]
    assert failures[1].reason == "malformed-step"


def test_a_pragma_that_nobody_knows_is_none_in_company_either():
    """A damaged name before a good number passed where a good program stood before it."""
    other = tiled(4, 16)
    other[-1][-1] = "auto_unrollep$16"
    groups, failures = group_programs([tiled(32, 0), other])
    assert groups[0].rows.tolist() == [0]
    assert failures[1].reason == "unknown-pragma"


def test_many_programs_are_grouped_as_the_reader_of_one_tells_them():
    rng = np.random.default_rng(0)
    programs, expected = [], {}
    for row in range(1300):
        steps = tiled(int(rng.integers(1, 9)), int(rng.integers(0, 3)))
        place = [(0, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (3, 1)][row % 7]
        if rng.integers(0, 3) == 0:  # another stage, loop, extent, number of lengths, mark
            steps[place[0]][place[1]] = [4, 2] if place == (1, 4) else int(rng.integers(0, 3))
        if row == 5:
            steps[1][4] = [8.0]  # whole, as only the reader of one sees
        programs.append(steps)
        skeleton, decisions = parse_steps(steps)
        extents = [steps[1][3]]
        expected.setdefault((skeleton, row == 5), []).append((row, decisions, extents))
    groups, failures = group_programs(programs)
    assert not failures
    assert len(groups) == len(expected)
    assert groups[0].rows.tolist() == sorted(groups[0].rows.tolist())
    for group in groups:
        rows, decisions, extents = zip(
            *expected[group.skeleton, group.rows.tolist() == [5]], strict=True
        )
        assert group.rows.tolist() == list(rows)
        assert group.decisions.tolist() == list(decisions)
        assert group.extents.tolist() == list(extents)


def test_many_skeletons_of_one_length_do_not_cost_their_square(monkeypatch):
    """300 marks in three programs each, shuffled, among them lines that nobody reads."""
    looked_at, conditions = [], skeleton._conditions
    monkeypatch.setattr(
        skeleton,
        "_conditions",
        lambda first, rows, *out: looked_at.append(len(rows)) or conditions(first, rows, *out),
    )
    programs = [[*tiled(2 + n % 3, 0), ["AN", 1, n // 3, 3]] for n in range(900)]
    programs += [[*tiled(4, "deep"), ["AN", 1, 7, 3]] for _ in range(30)]
    order = np.random.default_rng(0).permutation(len(programs))
    groups, failures = group_programs([programs[n] for n in order])
    expected = {}
    for row, n in enumerate(order.tolist()):
        expected.setdefault(n // 3 if n < 900 else "bad", []).append(row)
    assert sorted(failures) == expected.pop("bad")
    assert sorted(g.rows.tolist() for g in groups) == sorted(expected.values())
    for group in groups:
        lengths = [[2 + int(order[row]) % 3, 0] for row in group.rows]
        assert group.decisions.tolist() == lengths
    assert sum(looked_at) < 40 * len(programs)  # one by one: 300 times half of them
