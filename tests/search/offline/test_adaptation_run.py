"""Sessions of many tasks, shared models and label draws on made-up pools."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.fitting import OnlineFit, official_fit
from pruner.models.adaptation.warm import Scratch, Unchanged
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable
from pruner.search.explorer import ExplorerSettings
from pruner.search.offline.adaptation_run import (
    affordable,
    label_sizes,
    quality_by_labels,
    relative_curve,
    sign_flip_p,
    tune,
    without_draft,
)
from pruner.search.offline.recorded import RecordedTask
from pruner.search.offline.recorded_run import Curve, RecordedSpace
from pruner.search.policy import RoundSettings
from tests.models import synthetic

SETTINGS = RoundSettings(
    draft=None, verify=ExplorerSettings(population=128, generations=2, keep=16), random_sample=64
)


def small_pacm():
    return PaCM(width=32, dataflow_hidden=16, dataflow_width=16)


def pool(seed, name="t0", size=150):
    rng = np.random.default_rng(seed)
    programs = synthetic.task(rng, name, size)
    place = np.argsort(np.argsort(programs.latency_s))  # evenly spaced: no lucky outlier decides
    programs = replace(programs, latency_s=1e-4 * (1 + place / size))
    return RecordedTask(
        space=RecordedSpace(rng.permutation(size * 6).reshape(size, 6).astype(np.int64)),
        latency_s=programs.latency_s,
        cost_s=np.full(size, 2.0),
        draft=None,
        programs=programs,
    )


def test_relative_latency_is_the_geometric_mean_over_tasks():
    pools = [pool(0), pool(1)]
    best = [p.latency_s.min() for p in pools]
    curve = Curve(
        best_s=np.array([[4 * best[0], np.inf], [4 * best[0], 9 * best[1]], best]),
        elapsed_s=np.array([1.0, 2.0, 3.0]),
    )
    found = relative_curve(curve, pools)
    assert found.trials.tolist() == [2, 3]
    assert found.relative_latency == pytest.approx([6.0, 1.0])  # sqrt(4 * 9)
    assert found.elapsed_s.tolist() == [2.0, 3.0]
    assert found.area == pytest.approx((np.log(6.0) + 0.0) / 2)
    assert found.final == pytest.approx(1.0)


def test_a_subset_has_the_rows_and_labels_of_its_programs():
    store = synthetic.store(3, sizes=(5, 6))
    part = store.subset(torch.tensor([7, 1, 3]))
    whole = store.programs(torch.tensor([1, 3, 7]))
    mine = part.programs(torch.arange(3))
    assert torch.equal(mine.statement, whole.statement)
    assert torch.equal(mine.dataflow, whole.dataflow)
    assert part.task.tolist() == [0, 0, 1]
    pair = store.latency_s[[1, 3]]
    assert part.label[:2].tolist() == pytest.approx((pair.min() / pair).tolist())
    assert part.label[2] == 1


def test_a_shared_model_beats_chance_on_a_pool_that_can_be_learnt():
    gain = []
    for seed in range(5):  # all of five signs agree: p = 1 / 32
        pools = [pool(10 * seed, "t0"), pool(10 * seed + 1, "t1")]
        learner = Scratch(Setting(make_network=small_pacm, seed=seed), fit=official_fit(epochs=20))
        ours = tune(pools, learner, SETTINGS, trials=60, batch=10, seed=seed)
        chance = tune(pools, None, SETTINGS, trials=60, batch=10, seed=seed)
        gain.append(chance.final - ours.final)
    assert sign_flip_p(np.array(gain)) < 0.05, gain


def test_one_round_is_one_update_with_everything_measured_so_far():
    sizes = []

    class Counting(Scratch):
        def _update(self, store):
            sizes.append(store.num_programs)
            super()._update(store)

    setting = Setting(make_network=small_pacm)
    pools = [pool(0, "t0"), pool(1, "t1")]
    counting = Counting(setting, fit=OnlineFit(epochs=1, max_steps=1))
    tune(pools, counting, SETTINGS, trials=50, batch=10, seed=0)
    assert sizes == [10, 20, 30, 40]


def test_centres_are_those_of_the_whole_pools():
    pools = [pool(0, "t0"), pool(1, "t1")]
    store = ProgramTable.build(p.programs for p in pools)
    unchanged = Unchanged(Setting(make_network=small_pacm))
    tune(pools, unchanged, SETTINGS, trials=20, batch=10, seed=0)
    mean = unchanged.ranker.centers[pools[1].key].dataflow
    assert torch.allclose(mean, store.dataflow[150:].mean(dim=0))


def test_larger_label_draws_contain_smaller_ones():
    drawn, updates = {}, []

    class Recording(Unchanged):
        period = 4  # learns at every fourth update, as moa_official

        def _update(self, store):
            updates.append(store.num_programs)
            drawn[store.num_programs] = set(store.line[store.task == 0].tolist())

    labelled, held_out = synthetic.store(0, sizes=(40, 50)), synthetic.store(1, sizes=(30,))
    sizes = label_sizes([0, 10, 30, 500, "all"], labelled.num_programs)
    assert sizes == {"0": 0, "10": 10, "30": 30, "all": 90}
    found = quality_by_labels(
        lambda: Recording(Setting(make_network=small_pacm)), labelled, held_out, sizes, seed=0
    )
    assert list(found) == list(sizes)
    assert updates == [10] * 4 + [30] * 4 + [90] * 4
    assert drawn[10] <= drawn[30] <= drawn[90] == set(range(40))
    assert all(0 < q.top1 <= q.top5 <= 1 for q in found.values())


def test_searches_take_no_more_than_half_of_the_smallest_pool():
    assert affordable([pool(0, size=150), pool(1, size=61)], 240) == 2 * 30
    assert affordable([pool(0, size=150)], 40) == 40


def test_without_a_draft_as_many_programs_are_verified():
    settings = RoundSettings(
        draft=ExplorerSettings(population=512, generations=2, keep=256), random_sample=64
    )
    assert without_draft(settings).random_sample == 320
    assert without_draft(settings).draft is None
