"""A program that never had its turn teaches the search of others nothing, too."""

import pytest

from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.rivals.metaschedule import MetaSchedule
from pruner.tune.run.database import Database
from pruner.tune.workloads import operator


@pytest.mark.tvm
def test_metaschedules_model_does_not_learn_from_a_lost_device(tmp_path):
    platform = make_platform(load_device(conf_folder() / "platform" / "cpu-avx2.yaml"))
    settings = MetaSchedule(population_size=16, init_min_unmeasured=4, genetic_num_iters=1)
    model = settings.shared(platform)
    search = settings.make(
        operator("matmul", m=32, n=16, k=16),
        platform,
        Database(tmp_path).tvm_database,
        shared=model,
        budget=(8, 4),
        seed=0,
        phases=Phases(),
    )
    lost, failed = Outcome(error="run_no_device"), Outcome(error="run_crash")
    first = search.propose(4)
    search.observe(first, [lost] * len(first))
    assert model.data_size == 0
    second = search.propose(4)
    assert len(second) > 1
    outcomes = [failed, *[Outcome(costs_s=(1.0,))] * (len(second) - 2), lost]
    search.observe(second, outcomes)
    assert model.data_size == len(second) - 1
