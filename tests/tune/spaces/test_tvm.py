"""Design spaces replayed by TVM, their union, traces as decision vectors, flags of live tasks."""

import numpy as np
import pytest

from pruner.features.columns import WORDS, text_flags
from pruner.program.dag.dag import dag_text
from pruner.program.dag.operators import dag_for_workload, te_tensors
from pruner.search.explorer import NoneFound
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.prim_func import module_flags
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import Traces, UnionSpace
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import normalised
from tests.tune.designs import designs_of
from tests.tune.targets import module_of, target_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def designs():
    sizes = {"operator": "matmul", "m": 32, "n": 64, "k": 16}
    return designs_of(sizes, {"kind": "llvm", "num-cores": 4})


@pytest.fixture(scope="module")
def replayed(designs):
    return ReplaySpace(designs[0])


def test_a_vector_is_what_tvm_decided(designs, replayed):
    """Tiles of m, n (4 factors each) and k (2), then the index of the unroll depth."""
    drawn = replayed.sample(6, np.random.default_rng(0))
    assert drawn.shape == (6, 11)
    assert (drawn[:, :4].prod(axis=1) == 32).all()
    assert (drawn[:, 4:8].prod(axis=1) == 64).all()
    assert (drawn[:, 8:10].prod(axis=1) == 16).all()
    assert set(drawn[:, 10]) <= {0, 1, 2, 3}
    for row in drawn:
        (schedule,) = replayed.instantiate(row[None])
        np.testing.assert_array_equal(designs[0].vector(schedule.trace), row)


def test_few_programs_have_the_tries_of_many(replayed, monkeypatch):
    """Of a hundred refusals in a row one program must not conclude that the space is empty."""
    finished, tries = DesignSpace.finished, []

    def refused(most):
        tries.clear()

        def found(*given, **how):
            tries.append(given)
            return None if len(tries) <= most else finished(*given, **how)

        monkeypatch.setattr(DesignSpace, "finished", found)

    refused(100)
    assert replayed.sample(1, np.random.default_rng(0)).shape == (1, 11)
    assert len(tries) == 101
    refused(1000)
    with pytest.raises(NoneFound, match="refuses every random schedule"):
        replayed.sample(1, np.random.default_rng(0))


def test_mutations_stay_in_the_space(replayed):
    parents = replayed.sample(20, np.random.default_rng(1))
    children = replayed.mutate(parents, np.random.default_rng(2))
    assert (children != parents).any()
    assert (children[:, :4].prod(axis=1) == 32).all()
    assert replayed.legal(children).all()
    again = replayed.mutate(parents, np.random.default_rng(2))
    np.testing.assert_array_equal(children, again)  # TVM draws from the generator passed in
    assert (replayed.mutate(parents, np.random.default_rng(3)) != children).any()


def test_what_tvm_refuses_is_not_legal_without_a_word(replayed, caplog):
    row = replayed.sample(1, np.random.default_rng(3))[0]
    broken = row.copy()
    broken[10] = 9  # there are four unroll depths
    assert replayed.legal(np.stack([row, broken])).tolist() == [True, False]
    features = replayed.features(np.stack([broken, row]))
    assert features.failures == {0: "refused-by-tvm"}
    assert features.valid.tolist() == [False, True]
    assert caplog.text == ""


def test_a_union_draws_from_all_spaces_and_keeps_each_row_in_its_own(designs):
    phases = Phases()
    union = UnionSpace([ReplaySpace(design) for design in designs], phases)
    rng = np.random.default_rng(0)
    rows = union.sample(12, rng)
    assert set(rows[:, 0]) == set(range(len(designs)))
    assert (union.mutate(rows, rng)[:, 0] == rows[:, 0]).all()
    same = rows.copy()
    same[:, 0] = (rows[:, 0] + 1) % len(designs)
    assert not np.isin(union.keys(same), union.keys(rows)).any()  # the space is part of the key
    assert union.ranked(rows).all()
    assert np.isfinite(union.draft_score(rows)).all()
    assert None not in union.instantiate(rows[:1])
    assert phases.seconds()["sample"] > 0 < phases.seconds()["instantiate"]


SIZES = {"operator": "matmul", "m": 64, "n": 48, "k": 32, "epilogue": ["relu"]}


@pytest.fixture(scope="module")
def space():
    designs = designs_of(SIZES, {"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    # the first space is left out, as one without legal programs is
    return UnionSpace([BatchedSpace(design) for design in designs[1:]], Phases())


@pytest.fixture(scope="module")
def rows(space):
    return space.sample(24, np.random.default_rng(0))


@pytest.fixture(scope="module")
def traces(space, rows):
    return [schedule.trace for schedule in space.instantiate(rows)]


@pytest.mark.parametrize("form", ["as it is", "simplified", "from a database"])
def test_a_vector_comes_back_from_its_schedule(space, rows, traces, form):
    if form == "simplified":  # what TVM's evolutionary search makes of a design space
        traces = [trace.simplified(True) for trace in traces]
    if form == "from a database":
        traces = [from_json(space, trace) for trace in traces]
    found, known = Traces(space).rows(traces)
    assert known.all()
    np.testing.assert_array_equal(found, rows)


def from_json(space, trace):
    s_tir = load_tvm().s_tir
    schedule = s_tir.Schedule(space.spaces[0].design.module)
    s_tir.Trace.apply_json_to_schedule(trace.as_json(), schedule)
    return schedule.trace


def test_other_parallel_annotations_are_other_programs(space, rows, traces):
    mutator = load_tvm().meta_schedule.mutator.MutateParallel(max_jobs_per_core=16)
    mutator._initialize_with_tune_context(space.spaces[0].design.context)
    changed = [mutator.apply(trace) for trace in traces]
    kept = [row for row, trace in enumerate(changed) if trace is not None]
    changed = [changed[row] for row in kept]
    assert len(kept) > 10
    assert not Traces(space).rows(changed)[1].any()
    found, known = Traces(space).rows(changed, whatever_parallel=True)
    assert known.all()
    np.testing.assert_array_equal(found, rows[kept])
    # a space that was left out is unknown
    one = space.spaces[0].design
    left_out = design_spaces(one.module, one.target)[0]
    assert not Traces(space).rows([left_out.trace], whatever_parallel=True)[1].any()


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


def live(tvm, key, fused):
    return normalised(module_of(te_tensors(tvm.tvm.te, tvm.tvm.topi, key, fused)))


@pytest.mark.parametrize(("key", "fused"), TASKS)
def test_records_and_live_tasks_have_the_same_flags(tvm, key, fused):
    recorded = text_flags(dag_text(dag_for_workload(key, fused)))
    np.testing.assert_array_equal(module_flags(live(tvm, key, fused)), recorded)


def test_the_words_that_standard_operators_have_are_all_met(tvm):
    met = sum(module_flags(live(tvm, key, fused)) for key, fused in TASKS) > 0
    assert {word for word, seen in zip(WORDS, met, strict=False) if seen} == {
        "max", "add", "DepthwiseConv2d", "softmax", "compute(b, i, j)",
    }  # fmt: skip


def test_both_kinds_of_space_hand_the_flags_out(tvm):
    key, fused = TASKS[5]
    expected = text_flags(dag_text(dag_for_workload(key, fused)))
    assert expected.any()
    design = design_spaces(live(tvm, key, fused), target_of(2))[0]
    for space in (BatchedSpace(design), ReplaySpace(design)):
        rows = space.sample(2, np.random.default_rng(0))
        np.testing.assert_array_equal(space.features(rows).workload, expected)
