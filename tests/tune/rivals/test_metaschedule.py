"""MetaSchedule's search in our harness learns as TVM's own tuner does."""

import os

import numpy as np
import pytest

from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.phases import Phases
from pruner.tune.rivals.metaschedule import MetaSchedule, _cores
from pruner.tune.run.database import Database
from pruner.tune.workloads import operator


@pytest.mark.tvm
def test_all_tasks_of_a_run_share_one_model(tmp_path):
    """TVM's tune_tasks makes one model; with one a task it never spoke in a network's run."""
    platform = make_platform(load_device(conf_folder() / "platform" / "cpu-avx2.yaml"))
    settings = MetaSchedule(population_size=16, init_min_unmeasured=4, genetic_num_iters=1)
    model = settings.shared(platform)
    database = Database(tmp_path).tvm_database
    sizes = []
    for m in (16, 32):
        search = settings.make(
            operator("matmul", m=m, n=16, k=16),
            platform,
            database,
            shared=model,
            budget=(4, 4),
            seed=0,
            phases=Phases(),
        )
        candidates = search.propose(4)
        costs_s = np.linspace(1.0, 2.0, len(candidates))
        search.observe(candidates, [Outcome(costs_s=(cost_s,)) for cost_s in costs_s])
        sizes.append(len(candidates))
    assert min(sizes) > 0
    assert model.data_size == sum(sizes)


@pytest.mark.tvm
def test_a_round_is_as_large_as_it_is_asked_for(tmp_path):
    """TVM makes whole batches; equal trials of several tasks need the smaller first rounds, too."""
    platform = make_platform(load_device(conf_folder() / "platform" / "cpu-avx2.yaml"))
    settings = MetaSchedule(population_size=16, init_min_unmeasured=4, genetic_num_iters=1)
    search = settings.make(
        operator("matmul", m=32, n=32, k=32),
        platform,
        Database(tmp_path).tvm_database,
        shared=settings.shared(platform),
        budget=(20, 6),
        seed=0,
        phases=Phases(),
    )
    sizes = []
    for size in (2, 6, 6):
        candidates = search.propose(size)
        search.observe(candidates, [Outcome(costs_s=(1.0,)) for _ in candidates])
        sizes.append(len(candidates))
    assert sizes[0] == 2
    assert 2 < max(sizes[1:]) <= 6


@pytest.mark.tvm
def test_the_search_has_lanes_where_its_rules_stop_on_tensor_cores(tmp_path):
    """A convolution of 9 rows in half precision; TVM raises for all tiles."""
    platform = make_platform(load_device(conf_folder() / "platform" / "a100.yaml"))
    settings = MetaSchedule(population_size=32, init_min_unmeasured=4, genetic_num_iters=1)
    conv = {"n": 1, "ci": 32, "h": 3, "w": 3, "co": 64, "stride": 1}
    layer = {**conv, "kh": 3, "kw": 3, "padding": 1, "epilogue": ["bias"], "dtype": "float16"}
    search = settings.make(
        operator("conv2d", **layer),
        platform,
        Database(tmp_path).tvm_database,
        shared=settings.shared(platform),
        budget=(4, 4),
        seed=0,
        phases=Phases(),
    )
    assert search.propose(4)


def test_the_search_has_this_machines_cores_where_programs_run_elsewhere():
    cores = len(os.sched_getaffinity(0))
    assert _cores(Platform(target=None, device="cuda")) == cores
    board = RpcAddress(host="127.0.0.1", port=9190, key="board")
    assert _cores(Platform(target=None, device="cpu", cores=64, address=board)) == cores
    assert _cores(Platform(target=None, device="cpu", cores=3)) == 3
