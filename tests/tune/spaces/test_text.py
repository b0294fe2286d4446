"""A live task has the workload flags of a record of the same operator."""

import numpy as np
import pytest

from pruner.features.workload import WORDS, workload_flags
from pruner.program.dag.operators import dag_for_workload, te_tensors
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.text import module_flags
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.workloads import normalised
from tests.tune.targets import module_of, target_of

CONV = '["conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"]'
TASKS = [
    ('["matmul_layer", 20, 30, 40]', ()),
    ('["batch_matmul_layer", 2, 3, 4, 5, 6]', ()),
    ('["relu_layer", 8, 8]', ()),
    (CONV, ()),
    (CONV, ("add",)),
    (CONV, ("add", "relu")),
    ('["depthwise_conv2d_layer", 1, 8, 9, 9, 3, 3, 1, 1]', ()),
    ('["pool_layer", "max", 1, 8, 9, 9, 3, 3, 2, "SAME"]', ()),
    ('["pool_layer", "avg", 1, 8, 9, 9, 3, 3, 2, "VALID"]', ()),
    ('["softmax_layer", 8, 16]', ()),
]
pytestmark = pytest.mark.tvm


def live(tvm, key, fused):
    return normalised(module_of(te_tensors(tvm.tvm.te, tvm.tvm.topi, key, fused)))


@pytest.mark.parametrize(("key", "fused"), TASKS)
def test_records_and_live_tasks_have_the_same_flags(tvm, key, fused):
    recorded = workload_flags(dag_for_workload(key, fused))
    np.testing.assert_array_equal(module_flags(live(tvm, key, fused)), recorded)


def test_the_words_that_standard_operators_have_are_all_met(tvm):
    met = sum(module_flags(live(tvm, key, fused)) for key, fused in TASKS) > 0
    assert {word for word, seen in zip(WORDS, met, strict=False) if seen} == {
        "max", "add", "DepthwiseConv2d", "softmax", "compute(b, i, j)",
    }  # fmt: skip


def test_both_kinds_of_space_hand_the_flags_out(tvm):
    key, fused = TASKS[5]
    expected = workload_flags(dag_for_workload(key, fused))
    assert expected.any()
    design = design_spaces(live(tvm, key, fused), target_of(2))[0]
    for space in (BatchedSpace(design), ReplaySpace(design)):
        rows = space.sample(2, np.random.default_rng(0))
        np.testing.assert_array_equal(space.features(rows).workload, expected)
