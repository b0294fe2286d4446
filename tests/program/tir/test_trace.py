"""Traces replayed for many decision vectors at once."""

import numpy as np
import pytest

from pruner.program.tir import trace
from pruner.program.tir.trace import Instruction, Ref, TraceProgram, apply_groups
from tests.program.tir_trees import blurred


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
