"""Tensor-core spaces in batches against the programs that TVM makes of the same decisions."""

import numpy as np
import pytest

from pruner.program.tir.lower import lower
from pruner.program.tir.shared import shared_bytes
from pruner.program.tir.trace import apply, apply_groups
from tests.tune import tir_truth as truth

pytestmark = pytest.mark.tvm
tvm_missing = pytest.importorskip("tvm", reason="TVM 0.27 is not installed")

CONV = {"n": 1, "ci": 64, "h": 28, "w": 28, "co": 64, "stride": 1}
OPERATORS = {
    "matmul": {"operator": "matmul", "m": 256, "n": 384, "k": 512, "epilogue": ["relu"]},
    "padded": {"operator": "matmul", "m": 197, "n": 100, "k": 100, "epilogue": ["bias"]},
    "batch": {"operator": "batch_matmul", "batch": 4, "m": 128, "n": 128, "k": 64},
    "conv": {"operator": "conv2d", **CONV, "kh": 3, "kw": 3, "padding": 1, "epilogue": ["relu"]},
}
PROGRAMS = 3


@pytest.fixture(scope="module")
def tvm():
    from pruner.tune.tvm_import import load_tvm

    return load_tvm()


def spaces(tvm, spec):
    from pruner.tune.spaces.batched.space import BatchedSpace
    from pruner.tune.spaces.design import design_spaces
    from pruner.tune.workloads import from_operator

    module = from_operator({**spec, "dtype": "float16"}).module
    target = tvm.tvm.target.Target("nvidia/nvidia-a100")
    return [(design, BatchedSpace(design)) for design in design_spaces(module, target)]


@pytest.mark.parametrize("operator", OPERATORS)
def test_loops_buffers_and_verdicts_are_those_of_tvm(tvm, operator):
    rng = np.random.default_rng(3)
    compared = 0
    for design, space in spaces(tvm, OPERATORS[operator]):
        draws = np.concatenate([space.sample_any(PROGRAMS, rng), space.sample(PROGRAMS, rng)])
        legal = space.legal(draws)
        for rows, tree in apply_groups(space.program, draws)[0]:
            nests = lower(tree)
            for place, row in enumerate(rows):
                schedule, accepted = truth.replayed(tvm, design, draws[row])
                assert legal[row] == accepted, draws[row]
                assert truth.our_loops(tree, place) == truth.tvm_loops(schedule)
                ours = truth.our_buffers(tree, nests, place)
                theirs = truth.tvm_buffers(tvm, schedule)
                assert ours == {name: theirs.get(name) for name in ours}
                kinds = [inst.kind.name for inst in schedule.trace.insts]
                assert kinds.count("Tensorize") == 5  # fill, load a, load b, multiply, store
                compared += 1
    assert compared == 4 * PROGRAMS


def test_the_program_of_tvms_own_test(tvm):
    """128^3 with relu of test_meta_schedule_schedule_rule_mlt_tc.py, of float16 results.

    In fragments of 16: m = 4 1 1 1 2, n = 2 2 2 1 1, k = 1 4 2, so that 4 x 2 and 1 x 2 blocks of
    1 x 2 warps hold 2 x 1 fragments of results each.
    """
    spec = {"operator": "matmul", "m": 128, "n": 128, "k": 128, "epilogue": ["relu"]}
    design, space = spaces(tvm, spec)[0]
    decision = np.array([[4, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 4, 2, 0, 3, 1, 0]])
    tree = apply(space.program, decision)
    ours = truth.our_loops(tree, 0)
    assert ours["C_o_update"][0] == [
        (8, "blockIdx.y"), (2, "blockIdx.x"), (2, "threadIdx.y"), (4, None), (2, None), (2, None),
    ]  # fmt: skip
    buffers = truth.our_buffers(tree, lower(tree), 0)
    assert buffers["A_reindex_shared.dyn"] == (32, 128)
    assert buffers["B_reindex_shared.dyn"] == (32, 128)
    assert buffers["A_reindex_shared.dyn_wmma.matrix_a"] == (32, 32)
    assert buffers["B_reindex_shared.dyn_wmma.matrix_b"] == (16, 32)
    # of both warps, as long as their two loops are apart
    assert buffers["C_reindex_shared.dyn_wmma.accumulator"] == (1, 2, 2, 1, 16, 16)
    assert buffers["C_reindex_shared.dyn"] == (1, 2, 1, 1, 16, 16)
    # rows of 128 elements are 136 apart; the 512 results lie where the operands were
    (found,) = shared_bytes(tree).values()
    assert found.tolist() == [2 * 2 * 32 * 136]
    assert space.legal(decision).tolist() == [design.replay(decision[0], 1) is not None] == [True]


def test_mutations_stay_in_the_space(tvm):
    for _, space in spaces(tvm, OPERATORS["matmul"]):
        rng = np.random.default_rng(1)
        parents = space.sample(64, rng)
        children = space.mutate(parents, rng)
        assert (children != parents).any(axis=1).mean() > 0.9
        for part, fragments in ((slice(0, 5), 16), (slice(5, 10), 24), (slice(10, 13), 32)):
            assert (children[:, part].prod(axis=1) == fragments).all()
            assert (children[:, part][:, -1] <= 4).all()
