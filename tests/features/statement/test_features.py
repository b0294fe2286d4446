"""Statement features against the official code, and properties that hold for every schedule."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruner.features.statement.analysis import StoreAnalysis, analyse, statement_features
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.operators import dag_for_workload
from pruner.program.replay import TaskIndex
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from tests.features.golden import SHARED, aligned, load, needs_golden, tasks
from tests.program.schedules import Steps, conv_steps, factors, matmul_steps
from tests.program.tenset_tasks import golden_tasks, unpack_network_info

MATMUL, CONV = '["matmul_layer", 16, 24, 32]', '["conv2d_layer", 2, 8, 8, 8, 16, 3, 3, 1, "SAME"]'
INTEGER = range(7, 14)
# Buffer features that follow from the address of a freed node, see docs/feature-differences.md
REUSE = {57 + 18 * b + c for b in range(5) for c in range(18)}


def compute(dag: ComputeDAG, steps: list[Steps]) -> list[np.ndarray]:
    """Feature rows [S, 164] of every program."""
    groups, failures = group_programs(steps)
    assert not failures
    out: dict[int, np.ndarray] = {}
    for group in groups:
        nests = lower(apply(dag, group.skeleton, group.decisions))
        features = statement_features(nests, *analyse([nests]))
        out |= dict(zip(group.rows.tolist(), features, strict=True))
    return [out[i] for i in range(len(steps))]


def analyses(key: str, steps: Steps) -> list[StoreAnalysis]:
    (group,), _ = group_programs([steps])
    nests = lower(apply(dag_for_workload(key, ()), group.skeleton, group.decisions))
    return [analysis for (stores,) in [analyse([nests])] for analysis, _ in stores]


class Agreement:
    """How many programs are equal, and in which columns the others differ."""

    def __init__(self) -> None:
        self.programs = self.equal = 0
        self.columns: set[int] = set()

    def add(self, ours: np.ndarray, expected: np.ndarray) -> None:
        off = np.abs(aligned(ours, expected) - expected).max(0) > 1e-4
        self.programs += 1
        self.equal += not off.any()
        self.columns |= set(np.nonzero(off)[0].tolist())


@needs_golden
def test_features_of_real_records_are_the_official_ones():
    found = Agreement()
    for task in (load(*listed) for listed in tasks(every=15)):
        dag = dag_for_workload(task.workload_key, task.fused)
        for ours, expected in zip(
            compute(dag, task.steps), task.expected["statement"], strict=True
        ):
            found.add(ours, expected)
    assert found.programs > 60
    assert found.equal >= 0.98 * found.programs
    assert found.columns <= REUSE


@needs_golden
@pytest.mark.parametrize(
    ("target", "least"), [("cuda", 0.93), pytest.param("llvm", 1.0, marks=pytest.mark.slow)]
)
def test_features_of_tenset_tasks_are_the_official_ones(target, least, tmp_path_factory):
    folder = unpack_network_info(SHARED, tmp_path_factory.mktemp("network_info"))
    index = TaskIndex(Path(folder))
    found = Agreement()
    for task in [t for t in golden_tasks(SHARED) if t.name.startswith(target)][::9]:
        stored = np.load(SHARED / "golden" / "tenset" / f"{task.name}.npz")
        lines = [i for i in range(len(task.steps)) if f"{i}.statement" in stored.files]
        if lines:
            ours = compute(index.dag(task.workload_key), [task.steps[i] for i in lines])
            for line, rows in zip(lines, ours, strict=True):
                found.add(rows, stored[f"{line}.statement"])
    assert found.programs > 30
    assert found.equal >= least * found.programs
    assert found.columns <= REUSE
    assert not found.columns & set(INTEGER)


@st.composite
def matmuls(draw: st.DrawFn) -> Steps:
    vectors = draw(st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 4)]))
    i, j, k = draw(factors(16, 4)), draw(factors(32, 4)), draw(factors(24, 2))
    return matmul_steps(i, j, k, vectors=vectors, unroll=draw(st.sampled_from([0, 16, 512])))


@st.composite
def convs(draw: st.DrawFn) -> Steps:
    space = [draw(factors(extent, 4)) for extent in (2, 16, 8, 8)]
    reduce = [draw(factors(extent, 2)) for extent in (8, 3, 3)]
    return conv_steps(space, reduce, vectors=draw(st.sampled_from([(1, 1), (2, 1), (1, 3)])))


PROGRAMS = st.one_of(
    st.tuples(st.just(MATMUL), st.lists(matmuls(), min_size=2, max_size=5)),
    st.tuples(st.just(CONV), st.lists(convs(), min_size=2, max_size=5)),
)
ONE = st.one_of(st.tuples(st.just(MATMUL), matmuls()), st.tuples(st.just(CONV), convs()))


@settings(max_examples=15)
@given(PROGRAMS)
def test_a_batch_equals_its_programs_one_by_one(programs):
    key, steps = programs
    dag = dag_for_workload(key, ())
    together = compute(dag, steps)
    for rows, alone in zip(together, steps, strict=True):
        np.testing.assert_array_equal(rows, compute(dag, [alone])[0])


@settings(max_examples=15)
@given(PROGRAMS, st.randoms(use_true_random=False))
def test_permuted_programs_have_permuted_features(programs, random):
    key, steps = programs
    order = list(range(len(steps)))
    random.shuffle(order)
    dag = dag_for_workload(key, ())
    plain = compute(dag, steps)
    for place, rows in zip(order, compute(dag, [steps[i] for i in order]), strict=True):
        np.testing.assert_array_equal(rows, plain[place])


@settings(max_examples=30)
@given(ONE)
def test_loops_multiply_to_the_iteration_count(program):
    key, steps = program
    by_stage = {(a.store.buffer.name, a.store.kind): a for a in analyses(key, steps)}
    elements, reduction = (16 * 32, 24) if key == MATMUL else (2 * 16 * 8 * 8, 8 * 3 * 3)
    assert by_stage["compute", "plain"].frame.iterations == elements
    assert by_stage["compute.local", "init"].frame.iterations == elements
    assert by_stage["compute.local", "update"].frame.iterations == elements * reduction


@settings(max_examples=30)
@given(ONE)
def test_touched_bytes_are_never_below_unique_bytes(program):
    for analysis in analyses(*program):
        for access in analysis.accesses:
            assert np.all(access.bytes >= access.unique_bytes)
        inner, outer = analysis.touched_bytes[1:], analysis.touched_bytes[:-1]
        assert np.all(outer >= inner)  # a loop touches at least what one of its iterations does


def _tiled_matmul(lengths: list[list[int]], order: list[tuple[int, int]]) -> Steps:
    """A plain loop nest: i, j, k split by ``lengths``, loops (axis, level) in ``order``."""
    steps: Steps = []
    first = []
    for axis, parts in enumerate(lengths):
        first.append(sum(len(p) + 1 for p in lengths[:axis]))
        steps.append(["SP", 2, first[axis], 0, parts, 1])
    return [*steps, ["RE", 2, [first[axis] + level for axis, level in order]]]


@settings(max_examples=30)
@given(st.data())
def test_a_loop_of_one_iteration_behaves_as_absent(data):
    lengths = [data.draw(factors(extent, 2)) for extent in (16, 32, 24)]
    order = data.draw(st.permutations([(a, level) for a in range(3) for level in range(3)]))
    axis, level = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    longer = [list(parts) for parts in lengths]
    longer[axis].insert(level, 1)  # a new loop (axis, level + 1) of extent 1
    moved = [(a, d + 1) if a == axis and d > level else (a, d) for a, d in order]
    moved.insert(data.draw(st.integers(0, 9)), (axis, level + 1))
    dag = dag_for_workload(MATMUL, ())
    (plain,) = compute(dag, [_tiled_matmul(lengths, order)])
    (with_loop,) = compute(dag, [_tiled_matmul(longer, moved)])
    np.testing.assert_array_equal(with_loop, plain)
