"""Traces of TVM's schedules, records and mutations as decision vectors."""

import numpy as np
import pytest

from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.union import Traces, UnionSpace
from pruner.tune.tvm_import import load_tvm
from tests.tune.designs import designs_of

pytestmark = pytest.mark.tvm

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


def test_a_space_that_was_left_out_is_unknown(space):
    one = space.spaces[0].design
    left_out = design_spaces(one.module, one.target)[0]
    assert not Traces(space).rows([left_out.trace], whatever_parallel=True)[1].any()
