"""Which programs a smaller training set keeps."""

import numpy as np
import torch

from pruner.data.splits import TaskSplit
from pruner.models.programs.assemble import divide, spread
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from tests.models import synthetic


def store_of(*latencies):
    rng = np.random.default_rng(0)
    return ProgramTable.build(
        TaskPrograms.of(
            synthetic.key(str(i)),
            synthetic.features(rng, len(latency_s)),
            np.array(latency_s),
            np.arange(len(latency_s)),
        )
        for i, latency_s in enumerate(latencies)
    )


def test_crowded_labels_are_thinned_and_sparse_ones_kept():
    # Labels 1, eight times about 0.9, then 0.5, 0.2, 0.1: half of twelve is six.
    labels = np.array([1.0, *np.linspace(0.900, 0.907, 8), 0.5, 0.2, 0.1])
    kept = spread(store_of(1 / labels), torch.arange(12), 0.5, seed=0).tolist()
    assert {0, 9, 10, 11} <= set(kept)
    assert len(kept) == 6
    assert len(set(kept) & set(range(1, 9))) == 2


def test_every_task_keeps_its_share_and_its_best_whatever_the_seed():
    rng = np.random.default_rng(1)
    store = store_of(*(rng.lognormal(size=n) for n in (40, 3, 1, 101)))
    index = torch.arange(store.num_programs)[torch.randperm(145)]
    for seed in range(20):
        kept = spread(store, index, 0.55, seed)
        assert torch.equal(kept, kept.unique())
        per_task = torch.bincount(store.task[kept], minlength=4).tolist()
        assert per_task == [22, 2, 1, 56]
        assert (store.label[kept] == 1).sum() == 4
    assert torch.equal(spread(store, index, 1.0, 0), index)


def test_only_programs_of_the_index_are_kept_and_the_seed_decides_which():
    store = store_of(np.arange(1.0, 31.0))
    index = torch.arange(10, 30)
    kept = spread(store, index, 0.3, 0)
    assert set(kept.tolist()) <= set(index.tolist())
    assert len(kept) == 6
    assert 10 in kept  # the best of those given
    store = store_of(np.linspace(1, 1.01, 50))
    draws = [spread(store, torch.arange(50), 0.2, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_programs_that_failed_can_be_learnt_from_and_judge_nobody():
    store = store_of([2.0, np.inf, 1.0], [np.inf, 3.0], [1.0, np.inf, 4.0])
    assert store.label.tolist() == [0.5, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.25]
    first, second, third = store.keys
    split = TaskSplit(name="x", seed=0, train=(first,), valid=(second,), test=(third,))
    sides = {side: index.tolist() for side, index in divide(store, split).items()}
    assert sides == {"train": [0, 1, 2], "valid": [4], "test": [5, 7]}
