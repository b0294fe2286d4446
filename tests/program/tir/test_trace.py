"""Traces replayed for many decision vectors at once."""

import numpy as np

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


def test_an_unknown_instruction_is_refused_by_name():
    tree, _, _ = blurred(8)
    program = TraceProgram(tree, (Instruction("Tensorize", (), (), ()),), 0, is_gpu=False)
    groups, refused = apply_groups(program, np.zeros((2, 0), np.int64))
    assert groups == []
    assert refused == {0: "trace-instruction", 1: "trace-instruction"}
