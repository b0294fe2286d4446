"""Batched design spaces against the programs and features that TVM makes of the same decisions."""

from collections import Counter
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.features import STATEMENT_COLUMNS, featurize_nests
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.tir import trace
from pruner.program.tir.apply_trace import apply_groups
from pruner.tune.spaces.batched import space as module
from pruner.tune.spaces.batched.space import BatchedSpace
from tests.paths import CONF
from tests.tune import tir_truth as truth
from tests.tune.designs import designs_of
from tests.tune.some_slow import some_slow
from tests.tune.targets import A100, AVX512, open_designs

pytestmark = pytest.mark.tvm

CUDA, LLVM = A100, AVX512
KINDS = {"cuda": CUDA, "llvm": LLVM}
IMAGE = {"n": 1, "h": 14, "w": 14, "kh": 3, "kw": 3, "stride": 2, "padding": 1}
OPERATORS = {
    "matmul": {"operator": "matmul", "m": 64, "n": 96, "k": 128, "epilogue": ["relu"]},
    "batch": {"operator": "batch_matmul", "batch": 4, "m": 32, "n": 48, "k": 64},
    "conv": {"operator": "conv2d", **IMAGE, "ci": 8, "co": 16, "epilogue": ["bias", "relu"]},
    "depthwise": {"operator": "depthwise_conv2d", **IMAGE, "c": 16},
    "pool": {"operator": "pool", "kind": "avg", **IMAGE, "c": 16},
    "softmax": {"operator": "softmax", "rows": 32, "columns": 100},
    "norm": {"operator": "layer_norm", "rows": 32, "columns": 96},
}
PROGRAMS = 2


def spaces(operator, target):
    found = designs_of(OPERATORS[operator], target)
    # the others differ in the loop that is factored
    return [(design, BatchedSpace(design)) for design in found[:4]]


# the other target of each has the same operator
SLOW = [("batch", "cuda"), ("depthwise", "llvm"), ("norm", "llvm"), ("pool", "llvm")]
SLOW += [("conv", "cuda"), ("matmul", "llvm"), ("softmax", "llvm")]
PAIRS = [one for one in product(OPERATORS, KINDS) if one not in SLOW]


@some_slow(("operator", "target"), PAIRS, SLOW)
def test_loops_buffers_and_verdicts_are_those_of_tvm(tvm, operator, target):
    rng, compared = np.random.default_rng(3), 0
    for design, space in spaces(operator, KINDS[target]):
        draws = space.sample_any(PROGRAMS, rng)
        compared += truth.assert_programs_are_tvms(tvm, design, space, draws)
    assert compared >= PROGRAMS


@some_slow("operator", ["conv"], ["softmax", "norm"])
def test_a_program_is_the_same_alone_and_among_others(operator):
    """Among others its locations share a tree with theirs, alone they have one of their own."""
    analyzer = load_analyzer(CONF, "cpu-avx512")
    for _, space in spaces(operator, LLVM)[-2:]:
        draws = space.sample_any(40, np.random.default_rng(1))
        together, scores = space.features(draws), space.draft_score(draws, analyzer)
        assert together.valid.all()
        for row in range(0, len(draws), 4):
            alone = space.features(draws[[row]])
            np.testing.assert_array_equal(together.statement[together.rows(row)], alone.statement)
            np.testing.assert_array_equal(together.dataflow[row], alone.dataflow[0])
            assert space.draft_score(draws[[row]], analyzer) == scores[row]


SAME = [
    i
    for i, name in enumerate(truth.NAMES)
    if name.startswith(("float_", "bool_", "select_", "vec_", "unroll_", "parallel_", "is_gpu"))
    or name.startswith(("blockIdx", "threadIdx", "vthread", "alloc_", "outer_prod", "auto_unroll"))
]


@some_slow(
    ("operator", "target"),
    [("matmul", "cuda"), ("conv", "llvm")],
    [("matmul", "llvm"), ("conv", "cuda")],
)
def test_features_agree_with_tvms_extractor(tvm, operator, target):
    assert len(STATEMENT_COLUMNS) == 164
    assert {"float_addsub", "alloc_size", "outer_prod"} <= set(truth.NAMES)
    extractor = tvm.meta_schedule.feature_extractor.PerStoreFeature()
    rng = np.random.default_rng(5)
    for design, space in spaces(operator, KINDS[target]):
        draws = space.sample_any(PROGRAMS, rng)
        for rows, tree in apply_groups(space.program, draws)[0]:
            nests, num = truth.per_store_form(tree), len(rows)
            stores, flags = nests.stores, np.zeros(10, np.float32)
            batch = featurize_nests([(np.arange(num), nests)], num, workload=flags, failures={})
            ours = list(dict.fromkeys(s.buffer.key for s in stores))
            theirs = list(dict.fromkeys(s.buffer.key for s in stores if s.kind != "init"))
            for place, row in enumerate(rows):
                schedule, _ = truth.replayed(tvm, design, draws[row])
                candidate = tvm.meta_schedule.MeasureCandidate(schedule, [])
                (table,) = extractor.extract_from(design.context, [candidate])
                for expected, key in zip(table.numpy(), theirs, strict=True):
                    found = batch.statement[batch.rows(place)][ours.index(key)]
                    wrong = [truth.NAMES[c] for c in SAME if abs(found[c] - expected[c]) > 1e-3]
                    assert not wrong, tree.buffers[key].name
                    b = truth.accesses(expected)
                    a = truth.matched(truth.accesses(found), b)
                    np.testing.assert_allclose(a[:, :4], b[:, :4], atol=1e-3)  # kind and bytes


def test_samples_follow_metaschedules_distributions_and_keys_tell_vectors_apart():
    ((_, space), *_) = spaces("matmul", CUDA)
    draws = space.sample_any(20000, np.random.default_rng(0))
    assert (draws[:, :5].prod(1) == 64).all()
    assert (draws[:, 5:10].prod(1) == 96).all()
    counts = Counter(map(tuple, draws[:, :5].tolist()))
    assert len(counts) == 210  # 2^6 into five factors; 64 is the largest innermost factor allowed
    assert max(counts.values()) < 1.6 * 20000 / 210
    unroll = np.bincount(draws[:, -1], minlength=8) / 20000
    np.testing.assert_allclose(unroll, 1 / 8, atol=0.01)
    ((_, space), *_) = spaces("matmul", LLVM)
    draws = space.sample_any(500, np.random.default_rng(0))
    assert len(set(space.keys(draws).tolist())) == len(np.unique(draws, axis=0))


@pytest.mark.parametrize(("operator", "target"), [("matmul", CUDA), ("conv", LLVM)])
def test_mutations_change_one_decision_and_stay_in_the_space(operator, target):
    for design, space in spaces(operator, target)[:1]:
        rng = np.random.default_rng(1)
        parents = space.sample_any(512, rng)
        children = space.mutate(parents, rng)
        changed = (children != parents).sum(1)
        assert (changed >= 1).mean() > 0.95
        assert changed.max() <= 2  # a factor moves between two places
        starts = np.cumsum([0, *design.widths])
        for inst, start, end in zip(design.sampling, starts, starts[1:], strict=False):
            if inst.kind.name == "SamplePerfectTile":
                products = children[:, start:end].prod(1)
                assert (products == parents[:, start:end].prod(1)).all()
                assert (children[:, end - 1] <= 64).all()
            elif inst.kind.name == "SampleCategorical":
                assert (children[:, start] < len(inst.attrs[0])).all()


@some_slow("operator", ["matmul"], ["depthwise"])
def test_what_samples_and_mutations_call_legal_tvm_builds(tvm, operator):
    for design, space in spaces(operator, CUDA):
        rng = np.random.default_rng(2)
        draws = space.sample(5, rng)
        assert space.legal(draws).all()
        draws = np.concatenate([draws, space.mutate(draws, rng)])
        built = [design.replay(row, 1) for row in draws]
        assert space.legal(draws).tolist() == [schedule is not None for schedule in built]
        for ours, theirs in zip(space.instantiate(draws), built, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                tvm.tvm.ir.assert_structural_equal(ours.mod, theirs.mod)


@pytest.mark.parametrize("operator", ["matmul", "conv"])
def test_unit_loops_tell_candidates_apart_over_reductions_only(operator):
    """Only a pipeline fuses its outer reduction loop: two trees, with that loop and without."""
    counts = []
    for _, space in spaces(operator, CUDA):
        groups, refused = apply_groups(
            space.program, space.sample_any(500, np.random.default_rng(7))
        )
        assert not refused
        counts.append(len(groups))
    assert counts == [1, 2, 2]


@pytest.mark.parametrize(("operator", "dropped"), [("matmul", 0.5), ("conv", 0.5), ("pool", 0)])
def test_sampling_drops_no_legal_program_unseen(operator, dropped):
    """What the number of threads rules out before a replay is illegal after it."""
    for _, space in spaces(operator, CUDA):
        draws = space.sample_any(1000, np.random.default_rng(6))
        kept = space._plausible(1000, np.random.default_rng(6))
        assert len(kept) <= (1 - dropped) * len(draws)
        assert np.isin(space.keys(draws[space.legal(draws)]), space.keys(kept)).all()


def test_a_pipeline_over_a_unit_loop_is_refused():
    """The initialisation moves into the unit loop: one statement more than the pipeline names."""
    verdicts = []
    for design, space in spaces("batch", CUDA):
        draws = space.sample_any(2000, np.random.default_rng(4))
        unit = draws[:, 15] == 1  # three spatial axes of five parts, then the reduction
        assert (draws[:, 15:18].prod(axis=1) == 64).all()
        draws[unit, 15:18] = 2, 1, 32
        some = draws[unit & space.legal(draws)][:4]
        some[:, 15:18] = 1, 2, 32
        legal = space.legal(some)
        assert legal.tolist() == [design.replay(row, 1) is not None for row in some]
        verdicts.append(legal.any())
    assert verdicts == [True, False, False]


def test_where_few_draws_are_legal_sampling_goes_on_drawing(monkeypatch):
    """A 7x7 conv2d of which 0.06 % are legal; one pass of 16,384 draws finds about nine."""
    large = {"n": 64, "ci": 64, "h": 112, "w": 112, "co": 128, "kh": 7, "kw": 7}
    rare = {"operator": "conv2d", **large, "stride": 1, "padding": 3}
    space = BatchedSpace(designs_of(rare, CUDA)[-1])
    found = space.sample(48, np.random.default_rng(0))
    assert len(found) == 48
    assert len(np.unique(space.keys(found))) > 24
    assert space.legal(found).all()


def test_a_space_with_an_unknown_instruction_is_refused_with_the_reason(monkeypatch):
    monkeypatch.delitem(trace._HANDLERS, "ReverseComputeAt")
    with pytest.raises(UnsupportedProgram, match="trace-instruction"):
        spaces("matmul", CUDA)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [(UnsupportedProgram("condition", "Call"), "condition"), (KeyError(7), "replay-error")],
)
def test_programs_that_cannot_be_judged_go_through_tvms_replay(monkeypatch, raised, reason):
    monkeypatch.setattr(module, "verify_gpu_code", Mock(side_effect=raised))
    told = []
    found = open_designs(designs_of(OPERATORS["matmul"], CUDA)[:1], log=told.append)
    assert found.affordable is not None
    assert len(told) == 1
    assert f"go through TVM's replay, slowly ({reason}" in told[0]


def broken_handler(state, i, block, loop):
    """Fails for programs whose first decision is 1, and gives them a tree of their own."""
    if trace.uniform(np.equal(state.decision(0), 1)):
        raise KeyError(block.name)
    trace.primitives.reverse_compute_at(state.tree, block, loop)


def test_programs_that_fail_in_the_middle_of_a_run_cost_themselves(monkeypatch):
    ((_, space), *_) = spaces("matmul", CUDA)
    draws = space.sample(40, np.random.default_rng(0))
    bad = draws[:, 0] == 1
    assert 0 < bad.sum() < 40
    analyzer = load_analyzer(CONF, "a100")
    scores = space.draft_score(draws, analyzer)
    space.clear_cache()
    monkeypatch.setitem(trace._HANDLERS, "ReverseComputeAt", broken_handler)
    np.testing.assert_array_equal(space.legal(draws), ~bad)
    found = space.features(draws)
    np.testing.assert_array_equal(found.valid, ~bad)
    assert set(found.failures.values()) == {"replay-error"}
    again = space.draft_score(draws, analyzer)
    np.testing.assert_array_equal(again, np.where(bad, -np.inf, scores))


@pytest.mark.parametrize("where", ["lower", "verify_gpu_code"])
def test_so_do_those_that_fail_behind_the_replay(monkeypatch, where):
    ((_, space), *_) = spaces("matmul", CUDA)
    draws = space.sample(4, np.random.default_rng(0))
    monkeypatch.setattr(module, where, Mock(side_effect=ValueError("no such loop")))
    assert (space.draft_score(draws, load_analyzer(CONF, "a100")) == -np.inf).all()
    if where == "lower":
        assert space.features(draws).failures == dict.fromkeys(range(4), "replay-error")
    else:
        assert not space.legal(draws).any()
