"""MetaSchedule's search in our harness learns as TVM's own tuner does."""

import os

import numpy as np
import pytest

from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.phases import Phases
from pruner.tune.rivals.metaschedule import MetaSchedule, _cores
from pruner.tune.run.database import Database
from pruner.tune.workloads import operator
from tests.tune.targets import platform_of

SMALL = MetaSchedule(population_size=16, init_min_unmeasured=4, genetic_num_iters=1)


def search(folder, task, *, budget=(4, 4), platform="cpu-avx2", settings=SMALL, model=None):
    """A search of a task, and the model that it teaches."""
    platform, database = platform_of(platform), Database(folder).tvm_database
    model = model or settings.shared(platform)
    how = {"shared": model, "budget": budget, "seed": 0, "phases": Phases()}
    return settings.make(task, platform, database, **how), model


def ran(costs_s):
    return [Outcome(costs_s=(cost_s,)) for cost_s in costs_s]


@pytest.mark.tvm
def test_all_tasks_of_a_run_share_one_model(tmp_path):
    """TVM's tune_tasks makes one model; with one a task it never spoke in a network's run."""
    sizes, model = [], None
    for m in (16, 32):
        found, model = search(tmp_path, operator("matmul", m=m, n=16, k=16), model=model)
        candidates = found.propose(4)
        found.observe(candidates, ran(np.linspace(1.0, 2.0, len(candidates))))
        sizes.append(len(candidates))
    assert min(sizes) > 0
    assert model.data_size == sum(sizes)


@pytest.mark.tvm
def test_a_round_is_as_large_as_it_is_asked_for(tmp_path):
    """TVM makes whole batches; equal trials of several tasks need the smaller first rounds, too."""
    found, _ = search(tmp_path, operator("matmul", m=32, n=32, k=32), budget=(20, 6))
    sizes = []
    for size in (2, 6, 6):
        candidates = found.propose(size)
        found.observe(candidates, ran([1.0] * len(candidates)))
        sizes.append(len(candidates))
    assert sizes[0] == 2
    assert 2 < max(sizes[1:]) <= 6


@pytest.mark.tvm
def test_the_search_has_lanes_where_its_rules_stop_on_tensor_cores(tmp_path):
    """A convolution of 9 rows in half precision; TVM raises for all tiles."""
    settings = MetaSchedule(population_size=32, init_min_unmeasured=4, genetic_num_iters=1)
    conv = {"n": 1, "ci": 32, "h": 3, "w": 3, "co": 64, "stride": 1}
    layer = {**conv, "kh": 3, "kw": 3, "padding": 1, "epilogue": ["bias"], "dtype": "float16"}
    found, _ = search(tmp_path, operator("conv2d", **layer), platform="a100", settings=settings)
    assert found.propose(4)


@pytest.mark.tvm
def test_its_model_does_not_learn_from_a_lost_device(tmp_path):
    found, model = search(tmp_path, operator("matmul", m=32, n=16, k=16), budget=(8, 4))
    lost, failed = Outcome(error="run_no_device"), Outcome(error="run_crash")
    first = found.propose(4)
    found.observe(first, [lost] * len(first))
    assert model.data_size == 0
    second = found.propose(4)
    assert len(second) > 1
    found.observe(second, [failed, *ran([1.0] * (len(second) - 2)), lost])
    assert model.data_size == len(second) - 1


def test_the_search_has_this_machines_cores_where_programs_run_elsewhere():
    cores = len(os.sched_getaffinity(0))
    assert _cores(Platform(target=None, device="cuda")) == cores
    board = RpcAddress(host="127.0.0.1", port=9190, key="board")
    assert _cores(Platform(target=None, device="cpu", cores=64, address=board)) == cores
    assert _cores(Platform(target=None, device="cpu", cores=3)) == 3
