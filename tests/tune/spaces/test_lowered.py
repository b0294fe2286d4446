"""Loop nests read from what TVM scheduled, against those that the batched engine computes."""

from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.data.tasks import TaskKey
from pruner.errors import UnsupportedProgram
from pruner.features import STATEMENT_COLUMNS
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.search.explorer import ExplorerSettings
from pruner.search.policy import RoundSettings
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.phases import Phases
from pruner.tune.run.learning import TreeModel, learned_score
from pruner.tune.spaces import tvm as module
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.lowered import lowered
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.workloads import Workload
from tests.paths import CONF
from tests.tune.designs import designs_of
from tests.tune.some_slow import some_slow
from tests.tune.spaces.batched.test_space import OPERATORS as SMALL
from tests.tune.targets import A100, AVX512, module_of, open_designs, prepared, target_of

pytestmark = pytest.mark.tvm

CUDA, LLVM = A100, AVX512
ODD = {"n": 2, "ci": 6, "h": 15, "w": 13, "co": 10, "stride": 1}
MATMUL = {"operator": "matmul", "epilogue": ["relu"]}
OPERATORS = SMALL | {  # vectors overrun the output of its convolution, of one image
    "odd matmul": {**MATMUL, "m": 37, "n": 53, "k": 41},
    "odd conv": {**SMALL["conv"], **ODD},
    "half": {**MATMUL, "m": 256, "n": 384, "k": 512, "dtype": "float16"},
    "padded": {**MATMUL, "m": 197, "n": 100, "k": 100, "dtype": "float16"},
}
SPACES = 6


def analyzer_of(target):
    return load_analyzer(CONF, "a100" if target == CUDA else "cpu-avx512")


@some_slow(
    ("target", "operator"),
    [*product(["llvm"], ["matmul", "conv"]), *product(["cuda"], ["odd matmul", "softmax", "half"])],
    [*product(["llvm"], ["odd conv", "softmax", "norm"]), *product(["cuda"], ["conv", "padded"])],
)
@some_slow("programs", [2], [12])
def test_features_and_drafts_are_those_of_the_batched_space(operator, target, programs):
    """Every column of every row, every dataflow row and every score, to the last digit."""
    target = CUDA if target == "cuda" else LLVM
    analyzer = analyzer_of(target)
    for design in designs_of(OPERATORS[operator], target)[:SPACES]:
        batched, replayed = BatchedSpace(design), ReplaySpace(design)
        assert replayed.can_draft
        assert replayed.has_features
        rows = batched.sample(programs, np.random.default_rng(7))
        ours, theirs = batched.features(rows), replayed.features(rows)
        np.testing.assert_array_equal(theirs.valid, replayed.legal(rows))
        ours = ours.take(np.flatnonzero(theirs.valid))
        theirs = theirs.take(np.flatnonzero(theirs.valid))
        assert len(theirs) >= programs - 1
        np.testing.assert_array_equal(theirs.row_start, ours.row_start)
        np.testing.assert_array_equal(theirs.statement, ours.statement)
        np.testing.assert_array_equal(theirs.dataflow, ours.dataflow)
        np.testing.assert_array_equal(theirs.workload, ours.workload)
        known, scores = replayed.legal(rows), replayed.draft_score(rows, analyzer)
        np.testing.assert_array_equal(scores[known], batched.draft_score(rows, analyzer)[known])
        assert (scores[~known] == -np.inf).all()


def sliced(tvm, dtype):
    """Rows 1 to the last of a product: writing them has no batched form."""
    te, topi = tvm.tvm.te, tvm.tvm.topi
    a, b = te.placeholder((129, 128), dtype, "A"), te.placeholder((128, 64), dtype, "B")
    k = te.reduce_axis((0, 128), "k")
    c = te.compute((129, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    return module_of([a, b, topi.nn.relu(topi.strided_slice(c, [1, 0], [129, 64]))])


def weighted(tvm, *, free=True):
    """A product whose weights TVM may lay out anew, where they are `free`."""
    te, topi = tvm.tvm.te, tvm.tvm.topi
    a, b = te.placeholder((64, 128), name="A"), te.placeholder((128, 96), name="B")
    k = te.reduce_axis((0, 128), "k")
    c = te.compute((64, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    attrs = {"layout_free_buffers": [1]} if free else {}
    return module_of([a, b, topi.nn.relu(c)], **attrs)


def place_of_maximum(tvm):
    """Two stores in one block."""
    x = tvm.tvm.te.placeholder((32, 100), name="x")
    return module_of([x, tvm.tvm.topi.argmax(x, axis=1)])


REFUSED = {
    "slice-llvm": (lambda tvm: sliced(tvm, "float32"), LLVM, "block-index"),
    "slice-cuda": (lambda tvm: sliced(tvm, "float32"), CUDA, "inline-index"),
    "slice-half": (lambda tvm: sliced(tvm, "float16"), CUDA, "inline-index"),
    "weights": (weighted, LLVM, "layout-rewrite"),
    "argmax-llvm": (place_of_maximum, LLVM, "block-body"),
    "argmax-cuda": (place_of_maximum, CUDA, "block-body"),
}


def refusal(design):
    try:
        BatchedSpace(design)
    except UnsupportedProgram as error:
        return error.reason
    return None


@some_slow("case", [name for name in REFUSED if name != "slice-half"], ["slice-half"])
def test_what_the_engine_refuses_has_features_and_drafts(tvm, case):
    make, target, reason = REFUSED[case]
    found = design_spaces(make(tvm), target_of(target))
    reasons = [refusal(design) for design in found]
    assert set(reasons) - {None} == {reason}
    for design, refused in zip(found, reasons, strict=True):
        if refused is None:
            continue
        space = ReplaySpace(design)
        assert (space.can_draft, space.has_features, space.unreadable) == (True, True, "")
        rows = space.sample(3, np.random.default_rng(0))
        features = space.features(rows)
        assert features.valid.all()
        assert np.isfinite(features.statement).all()
        assert np.isfinite(space.draft_score(rows, analyzer_of(target))).all()


def test_a_new_layout_of_weights_changes_how_they_are_read_and_nothing_else(tvm):
    """Against the same decisions of the same product with its weights as they are."""
    names = [column.name for column in STATEMENT_COLUMNS]
    moves = [n.startswith("int_") or "lines" in n or n.endswith("stride") for n in names]
    plain, free = (
        design_spaces(weighted(tvm, free=free), target_of(LLVM)) for free in (False, True)
    )
    for design, other in zip(plain, free, strict=True):
        batched = BatchedSpace(design)
        rows = batched.sample(4, np.random.default_rng(3))
        ours, theirs = batched.features(rows), ReplaySpace(other).features(rows)
        np.testing.assert_array_equal(theirs.row_start, ours.row_start)
        changed = theirs.statement != ours.statement
        product = np.zeros(len(changed), bool)
        product[ours.row_start[:-1]] = True
        assert not changed[~product].any()
        assert not changed[:, ~np.array(moves)].any()
        assert changed[product].any(axis=1).all()


def test_every_store_of_a_block_is_a_statement(tvm):
    """The largest of 100 numbers in each of 32 rows, and its place: two sums of 3,200 steps."""
    design = design_spaces(place_of_maximum(tvm), target_of(LLVM))[0]
    nests = lowered(design.finished(design.vector(design.trace), 1).module)
    steps = {}
    for store in nests.stores:
        extents = [int(loop.extent) for loop in store.loops]
        steps.setdefault(store.buffer.name, []).append((store.kind, int(np.prod(extents))))
    both = [("init", 32), ("update", 32 * 100)]
    copied = [("plain", 64)]  # one vector, of which a guard cuts half off
    assert steps == {"x_red_temp.v0": both, "x_red_temp.v1": both, "x_red": copied}


def test_what_cannot_be_read_is_left_to_chance_with_the_reason(tvm, monkeypatch):
    unread = Mock(side_effect=UnsupportedProgram("statement", "While"))
    monkeypatch.setattr(module, "lowered", unread)
    (design, *_), told = design_spaces(weighted(tvm), target_of(LLVM)), []
    found = open_designs([design], analyzer_of(LLVM), learns=True, log=told.append)
    assert (found.can_draft, found.has_features) == (False, False)
    (line,) = told
    assert "replay, slowly and without draft, and the learned model does not rank their" in line
    (space,) = found.spaces
    assert space.unreadable == "statement"
    rows = space.sample(2, np.random.default_rng(0))
    assert space.features(rows).failures == {0: "statement", 1: "statement"}
    assert np.isnan(space.draft_score(rows, analyzer_of(LLVM))).all()


@pytest.mark.slow
def test_programs_of_a_replayed_space_teach_the_model(tvm, tmp_path):
    pytest.importorskip("xgboost")
    platform = Platform(target=target_of(LLVM), device="cpu", cores=2, name="cpu-avx512")
    few, phases = ExplorerSettings(population=24, generations=1, keep=16), Phases()
    policy = RoundSettings(draft=few, verify=few, random_sample=16)
    task = Workload(name="product", module=weighted(tvm))
    found = prepared(
        task, policy, tmp_path, platform, phases=phases, analyzer=analyzer_of(LLVM),
        make_model=lambda: TreeModel(seed=0),
    )  # fmt: skip
    search, rows, latency_s = found.tasks[0].search, [], []
    assert [space.affordable for space in search.space.spaces] == [64, 64, 64]
    for _ in range(2):
        chosen = search.propose(12)
        some = np.array([[c.space, *c.decisions] for c in chosen])
        times = 1e-3 / (1 + some[:, 1:9].clip(max=4).sum(axis=1))
        search.observe(chosen, [Outcome(costs_s=(float(s),)) for s in times])
        rows, latency_s = [*rows, *some], [*latency_s, *times]
    search.propose(4)  # and with it a fit on all that was measured
    assert phases.seconds()["train"] > 0
    key = TaskKey(platform="cpu-avx512", task="product", workload_key="[]", target="llvm")
    score = learned_score(key, search.space, found.shared.model, phases)(np.array(rows))
    assert np.isfinite(score).all()
    ranks = [np.argsort(np.argsort(x)) for x in (score, -np.array(latency_s))]
    assert np.corrcoef(*ranks)[0, 1] > 0.7
