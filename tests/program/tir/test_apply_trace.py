"""Traces replayed for many decision vectors at once."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.tir import trace
from pruner.program.tir.apply_trace import apply, apply_groups, location_options
from pruner.program.tir.trace import Instruction, Ref, TraceProgram
from tests.program.tir_trees import blurred, box, extents

LOCATED = (
    Instruction("GetSBlock", (), ("out", "main"), (0,)),
    Instruction("GetLoops", (Ref(0),), (), (1,)),
    Instruction("SamplePerfectTile", (Ref(1),), (3, 64), (2, 3, 4), slot=0),
    Instruction("Split", (Ref(1), Ref(2), Ref(3), Ref(4)), (), (5, 6, 7)),
    Instruction("GetSBlock", (), ("mid", "main"), (8,)),
    Instruction("SampleComputeLocation", (Ref(8),), (), (9,), slot=3),
    Instruction("ComputeAt", (Ref(8), Ref(9)), (1, -1), ()),
)


def located():
    """out[i] = mid[i] + mid[i + 1] in three loops, and mid somewhere under them."""
    tree, _, _ = blurred(64)
    return TraceProgram(tree, LOCATED, num_slots=4, is_gpu=False)


def some_decisions(num):
    rng = np.random.default_rng(0)
    tiles = np.array([[64, 1, 1], [4, 4, 4], [1, 8, 8], [2, 2, 16], [16, 1, 4]])
    return np.hstack([tiles[rng.integers(0, len(tiles), num)], rng.integers(-2, 3, (num, 1))])


def described(tree, place):
    """Loops around every block and what is stored of every buffer, of one program.

    A unit loop is none: which half of a loop a program lacks depends on the others.
    """

    def here(value):
        return int(np.broadcast_to(value, tree.num_programs)[place])

    loops = {b.name: [here(e) for e, _ in extents(tree, b) if here(e) > 1] for b in tree.blocks()}
    stored = {b.buffer: [here(np.asarray(x)) for x in box(tree, b.buffer)] for b in tree.blocks()}
    return loops, stored


def test_candidates_that_need_different_trees_part():
    program = located()
    decisions = np.array([[4, 4, 4, -2], [4, 4, 4, -1], [2, 4, 8, 0], [4, 4, 4, -1]])
    groups, refused = apply_groups(program, decisions)
    assert not refused
    assert sorted(rows.tolist() for rows, _ in groups) == [[0], [1, 2, 3]]
    blocks = {rows.tolist()[0]: [b.name for b in t.blocks()] for rows, t in groups}
    assert blocks == {0: ["out"], 1: ["mid", "out"]}


def test_a_program_is_the_same_alone_and_among_others():
    program, decisions = located(), some_decisions(60)
    groups, refused = apply_groups(program, decisions)
    assert not refused
    assert len(groups) == 2  # inlined, at the root or in any loop
    seen = []
    for rows, tree in groups:
        for place, row in enumerate(rows):
            alone = apply(program, decisions[row][None])
            assert described(tree, place) == described(alone, 0), decisions[row]
            seen.append(row)
    assert sorted(seen) == list(range(60))


def test_what_comes_before_the_locations_is_applied_once(monkeypatch):
    calls = []
    split = trace._HANDLERS["Split"]
    monkeypatch.setitem(trace._HANDLERS, "Split", lambda *a: calls.append(1) or split(*a))
    program, decisions = located(), some_decisions(60)
    assert len(apply_groups(program, decisions)[0]) == 2
    assert len(calls) == 1
    places, allowed = location_options(program, decisions, 3)
    assert len(calls) == 2
    assert places.tolist() == [-2, -1, 0, 1, 2]
    loops = decisions[:, :3] != 1  # unit loops are not on offer
    np.testing.assert_array_equal(allowed, np.hstack([np.ones((60, 2), bool), loops]))


def test_programs_that_part_in_the_middle_of_an_instruction_begin_anew(monkeypatch):
    split = trace._HANDLERS["Split"]

    def parting(state, i, *loops):
        trace.uniform(np.equal(state.decision(0), 4))  # after half of its work
        return split(state, i, *loops)

    program, decisions = located(), some_decisions(60)
    expected = {tuple(rows) for rows, _ in apply_groups(program, decisions)[0]}
    monkeypatch.setitem(trace._HANDLERS, "Split", parting)
    groups, refused = apply_groups(program, decisions)
    assert not refused
    assert sorted(row for rows, _ in groups for row in rows) == list(range(60))
    for rows, _ in groups:
        assert len(set(decisions[rows, 0] == 4)) == 1
        assert any(set(rows.tolist()) <= set(whole) for whole in expected)


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (Instruction("GetLoops", (Ref(9),), (), (0,)), "replay-error"),  # a block nobody made
        (Instruction("GetSBlock", (), ("mid", "main"), (0, 1)), "trace-results"),
        (Instruction("SetScope", (), (0, "shared"), ()), "replay-error"),  # of no block
    ],
)
def test_what_nobody_foresaw_refuses_the_program(instruction, reason):
    tree, _, _ = blurred(8)
    program = TraceProgram(tree, (instruction,), 0, is_gpu=False)
    groups, refused = apply_groups(program, np.zeros((2, 0), np.int64))
    assert groups == []
    assert refused == {0: reason, 1: reason}


def test_memory_that_runs_out_is_no_refusal(monkeypatch):
    def full(*_):
        raise MemoryError

    tree, _, _ = blurred(8)
    monkeypatch.setitem(trace._HANDLERS, "EnterPostproc", full)
    program = TraceProgram(tree, (Instruction("EnterPostproc", (), (), ()),), 0, is_gpu=False)
    with pytest.raises(MemoryError):
        apply_groups(program, np.zeros((2, 0), np.int64))


def test_an_unknown_instruction_is_refused_by_name():
    tree, _, _ = blurred(8)
    program = TraceProgram(tree, (Instruction("Tensorize", (), (), ()),), 0, is_gpu=False)
    groups, refused = apply_groups(program, np.zeros((2, 0), np.int64))
    assert groups == []
    assert refused == {0: "trace-instruction", 1: "trace-instruction"}


def test_programs_that_cannot_be_told_in_a_shared_tree_have_trees_of_their_own(monkeypatch):
    def simple(state, i, block, loop):
        if any(np.any(x.absent) for x in state.tree.path(state.tree.find("out"))):
            raise UnsupportedProgram("mixed-relax", block.name)
        trace._compute_at(state, i, block, loop)

    program, decisions = located(), some_decisions(60)
    monkeypatch.setitem(trace._HANDLERS, "ComputeAt", simple)
    groups, refused = apply_groups(program, decisions)
    assert not refused
    assert sorted(row for rows, _ in groups for row in rows) == list(range(60))
    assert len(groups) == 5  # inlined, at the root, in one of three loops


def test_what_comes_after_a_location_finds_the_loops_that_it_names():
    """Two programs share no tree where an instruction wants a loop that would be cut."""
    instructions = (*LOCATED, Instruction("Annotate", (Ref(6), 1), ("mark",), ()))
    program = TraceProgram(located().tree, instructions, num_slots=4, is_gpu=False)
    decisions = np.array([[4, 4, 4, 0], [2, 8, 4, 1], [4, 4, 4, 2], [4, 4, 4, -1]])
    groups, refused = apply_groups(program, decisions)
    assert not refused
    assert sorted(row for rows, _ in groups for row in rows) == [0, 1, 2, 3]
    for rows, tree in groups:
        marked = [x.extent for x in tree.nodes() if "mark" in x.annotations]
        assert len(marked) == 1
        np.testing.assert_array_equal(np.broadcast_to(marked[0], len(rows)), decisions[rows, 1])
