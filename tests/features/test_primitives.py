"""Tokens of schedule primitives: by hand, and against flattening the logged steps one by one."""

import numpy as np
import pytest

from pruner.features import featurize_records
from pruner.features.primitives import KINDS, NUM_COLUMNS, NUM_STEPS, primitive_tokens
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import matmul_steps

NUM_KINDS = len(KINDS)
SCOPES = {"local": 1, "shared": 2, "global": 3}


def relu(threads):
    return [
        ["FU", 1, [0, 1]],
        ["SP", 1, 0, 2048, [threads], 1],
        ["AN", 1, 0, 5],
        ["AN", 1, 1, 6],
        ["PR", 1, 0, "auto_unroll_max_step$64"],
    ]


def dense(tokens, program):
    """Structure with the decisions written in, one by one."""
    skeleton = tokens.skeleton[program]
    block = tokens.structure[skeleton].reshape(-1).copy()
    for place, number in zip(tokens.place[skeleton], tokens.number[program], strict=True):
        if place >= 0:
            block[place] = number
    return block.reshape(NUM_STEPS, NUM_COLUMNS)


def kind(step):
    return np.eye(NUM_KINDS)[KINDS.index(step)]


def test_a_small_schedule_by_hand():
    groups, _ = group_programs([relu(32), relu(8)])
    found = dense(primitive_tokens(groups, 2), 1)
    expected = np.zeros((NUM_STEPS, NUM_COLUMNS))
    expected[0] = [*kind("FU"), 1, 0, 1, 0, 0, 0, 0, 0]
    expected[1] = [*kind("SP"), 1, 0, np.log2(1 + 8), 1, 0, 0, 0, 0]
    expected[2] = [*kind("AN"), 1, 0, 5, 0, 0, 0, 0, 0]
    expected[3] = [*kind("AN"), 1, 1, 6, 0, 0, 0, 0, 0]
    expected[4] = [*kind("PR"), 1, 0, np.log2(1 + 64), 0, 0, 0, 0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def flattened(step):
    """One logged step as numbers, the extent of a split left out."""
    tag, *fields = step
    if tag == "SP":
        stage, it, _, lengths, inner = fields
        return [stage, it, *np.log2(1 + np.array(lengths)), inner]
    if tag == "PR":
        return [*fields[:2], np.log2(1 + int(fields[2].partition("$")[2]))]
    out = []
    for field in fields:
        if isinstance(field, str):
            out.append(SCOPES[field])
        else:
            out.extend(field if isinstance(field, list) else [field])
    return out


def test_every_program_of_two_skeletons_equals_its_flattened_steps():
    tiles = [(1, 4, 2, 2), (2, 8, 1, 4), (1, 16, 4, 1)]
    programs = [
        matmul_steps(512, 256, 512, rows, columns, (4, 2), unroll=unroll)
        for rows in tiles
        for columns in tiles
        for unroll in (0, 64)
    ]
    programs.insert(3, relu(16))
    groups, failures = group_programs(programs)
    assert (len(groups), failures) == (2, {})
    tokens = primitive_tokens(groups, len(programs))
    for number, steps in enumerate(programs):
        found = dense(tokens, number)
        assert not found[len(steps) :].any()
        for row, step in zip(found, steps, strict=False):
            fields = (flattened(step) + [0] * 8)[:8]
            np.testing.assert_allclose(row[NUM_KINDS:], fields, rtol=1e-6)
            assert row[:NUM_KINDS].sum() == 1


def test_steps_beyond_the_fortieth_and_fields_beyond_the_eighth_are_cut():
    long = [["AN", 0, i % 3, 1] for i in range(60)]
    long[1] = ["RE", 0, list(range(12))]
    long[55] = ["SP", 0, 0, 64, [4, 2], 1]
    groups, _ = group_programs([long])
    tokens = primitive_tokens(groups, 1)
    assert tokens.structure.shape == (2, 40, 22)
    assert tokens.structure[0, 1, NUM_KINDS:].tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert tokens.place[0].tolist() == [-1, -1]


def test_features_carry_tokens_and_unreadable_programs_have_none():
    steps = [relu(32), [["PPT", 1]], relu(8)]
    batch = featurize_records('["relu_layer", 64, 32]', (), steps)
    assert batch.valid.tolist() == [True, False, True]
    assert not dense(batch.tokens, 1).any()
    assert dense(batch.tokens, 2)[1, NUM_KINDS + 2] == pytest.approx(np.log2(9))
