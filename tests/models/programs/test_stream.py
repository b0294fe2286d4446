"""Features from the cache are those held in memory, to the last bit, and so is a fit."""

import gzip
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from pruner.data.root import RecordRoot
from pruner.data.splits import TaskSplit
from pruner.errors import DataError, PrunerError
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.tlp import TLP
from pruner.models.programs import program_table as module
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.loading import Share, needs_of
from pruner.models.programs.reading import ReadSpec
from pruner.models.training.fit import fit
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import EpochSampler, MixedBatches, TaskBatches
from tests.models.synthetic import exactly
from tests.paths import DATASETS

PLATFORM = "cpu-avx512"
TASKS = (
    "matmul_64_512_256",
    "conv2d_add_1_128_14_14_128_1_1_1_SAME",
    "pool_max_1_64_56_56_3_3_2_SAME",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    there = folder / "measure_records" / PLATFORM
    there.mkdir(parents=True)
    for name in TASKS:
        given = DATASETS / "ansor/measure_records" / PLATFORM / f"{name}.json.gz"
        with gzip.open(given) as lines, gzip.open(there / given.name, "wb") as kept:
            kept.writelines(islice(lines, 32))
    return RecordRoot(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def store(root):
    return load_programs(root, [PLATFORM]).store


@pytest.fixture(scope="module")
def streamed(root, cache):
    return load_programs(root, [PLATFORM], ReadSpec(cache=cache, stream=True)).store


def equal(ours, theirs):
    assert torch.equal(ours.statement, theirs.statement)
    assert torch.equal(ours.program, theirs.program)
    assert torch.equal(ours.dataflow, theirs.dataflow)
    assert torch.equal(ours.platform, theirs.platform)
    assert ours.platforms == theirs.platforms
    for one, other in zip(ours.tokens.dense(), theirs.tokens.dense(), strict=True):
        assert torch.equal(one, other)


def test_what_needs_no_features_is_the_same(store, streamed):
    assert streamed.keys == store.keys
    assert streamed.num_programs == store.num_programs > 90
    assert len(streamed.dataflow) == len(TASKS)  # an example each
    for name in ("task", "latency_s", "line", "label", "task_start", "platform"):
        assert torch.equal(getattr(streamed, name), getattr(store, name)), name
    np.testing.assert_array_equal(streamed.digest, store.digest)
    np.testing.assert_array_equal(streamed.timed_s, store.timed_s)
    assert streamed.num_dataflow_rows == store.num_dataflow_rows
    assert streamed.has_dataflow == store.has_dataflow


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_features_of_some_programs_are_those_in_memory(store, streamed, relative, share):
    generator = torch.Generator().manual_seed(1)
    index = (torch.rand(store.num_programs, generator=generator) < share).nonzero().squeeze(1)
    if relative:
        store, streamed = store.relative(), streamed.relative()
    views = list(streamed.each_task(index))
    assert torch.equal(torch.cat([programs for programs, _, _ in views]), index)
    for programs, held, own in views:
        equal(held.programs(own), store.programs(programs))


def test_what_the_analyzer_makes_of_programs_and_failures_come_along(root, tmp_path):
    asked = ReadSpec(draft=True, failures=True)
    store = load_programs(root, [PLATFORM], asked).store
    index = torch.arange(3, store.num_programs)
    sampler = EpochSampler(TaskBatches(tasks=2, programs=8), index, store.task[index], seed=3)
    for _ in ("read", "from the cache"):
        spec = replace(asked, cache=tmp_path, stream=True)
        streamed = load_programs(root, [PLATFORM], spec).store
        assert torch.equal(streamed.latency_s, store.latency_s)
        ours = list(streamed.relative().loader(sampler, Share()))
        theirs = list(store.relative().loader(sampler, Share()))
        for one, other in zip(ours, theirs, strict=True):
            equal(one.programs, other.programs)
            assert torch.equal(one.programs.draft, other.programs.draft)


@pytest.mark.parametrize(
    "plan",
    [
        TaskBatches(tasks=2, programs=8, per_task=40),
        TaskBatches(tasks=2, programs=8, window=1),
        MixedBatches(programs=16, window=2),
    ],
)
def test_batches_are_those_in_memory(store, streamed, plan):
    index = torch.arange(5, store.num_programs)
    sampler = EpochSampler(plan, index, store.task[index], seed=3)
    loader = streamed.relative().loader(sampler, Share())
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)
        ours = list(loader)
        theirs = list(store.relative().loader(sampler, Share()))
        assert len(ours) == len(theirs) == len(loader)
        for one, other in zip(ours, theirs, strict=True):
            equal(one.programs, other.programs)
            for name in ("label", "task", "index"):
                assert torch.equal(getattr(one, name), getattr(other, name))


def test_a_share_has_the_features_of_its_part_and_the_labels_of_all(store, streamed):
    index = torch.arange(store.num_programs)
    sampler = EpochSampler(MixedBatches(programs=50), index, store.task, seed=0)
    loaders = [streamed.loader(sampler, Share(rank, 3)) for rank in range(3)]
    for whole, *parts in zip(store.loader(sampler, Share()), *loaders, strict=True):
        assert [part.first for part in parts] == np.cumsum(
            [0, *(part.programs.num_programs for part in parts[:-1])]
        ).tolist()
        assert torch.equal(
            torch.cat([part.programs.dataflow for part in parts]), whole.programs.dataflow
        )
        assert torch.equal(
            torch.cat([part.programs.statement for part in parts]), whole.programs.statement
        )
        for part in parts:
            assert torch.equal(part.label, whole.label)
            assert torch.equal(part.task, whole.task)


def test_a_share_of_fewer_programs_than_processes_is_empty(store, streamed):
    index = torch.arange(6)
    sampler = EpochSampler(MixedBatches(programs=2), index, store.task[index], seed=0)
    loaders = [one.loader(sampler, Share(2, 3)) for one in (streamed, store)]
    for ours, theirs in zip(*loaders, strict=True):
        assert ours.programs.num_programs == 0
        equal(ours.programs, theirs.programs)
        assert torch.equal(ours.label, theirs.label)


def test_an_abandoned_epoch_leaves_nothing_behind_for_the_next(store, streamed):
    index = torch.arange(store.num_programs)
    sampler = EpochSampler(TaskBatches(tasks=2, programs=8), index, store.task, seed=3)
    loader = streamed.loader(sampler, Share())
    next(iter(loader))
    sampler.set_epoch(1)
    for one, other in zip(loader, store.loader(sampler, Share()), strict=True):
        equal(one.programs, other.programs)


SPLIT = {"name": "x", "seed": 0, "by_rows": True}


def fitted(programs, folder, stop_after=None, **changes):
    keys = programs.keys
    split = TaskSplit(train=keys, valid=keys, test=keys, **SPLIT)
    batches = TaskBatches(tasks=2, programs=8, window=2)
    options = {"accelerator": "cpu"}
    recipe = Recipe(batches=batches, trainer=options, epochs=2, **{"model": TenSetMLP, **changes})
    return fit(recipe, programs, split, folder=folder, stop_after=stop_after)


@pytest.mark.parametrize(
    "changes",
    [{}, {"relative": False, "scale": "max"}, pytest.param({"model": TLP}, marks=pytest.mark.slow)],
)
def test_a_fit_is_that_in_memory(store, streamed, tmp_path, changes):
    ours = fitted(streamed, tmp_path / "ours", **changes)
    theirs = fitted(store, tmp_path / "theirs", **changes)
    exactly(ours.ranker.state_dict(), theirs.ranker.state_dict())
    assert ours.numbers["best_valid"] == theirs.numbers["best_valid"]


def test_a_resumed_fit_equals_an_uninterrupted_one(streamed, tmp_path):
    whole = fitted(streamed, tmp_path / "whole", keep="last")
    assert not fitted(streamed, tmp_path / "parts", stop_after=1, keep="last").finished
    again = fitted(streamed, tmp_path / "parts", keep="last")
    exactly(again.ranker.state_dict(), whole.ranker.state_dict())


def test_the_normalisation_is_that_of_a_sample_which_the_class_states(store, streamed, monkeypatch):
    monkeypatch.setattr(module, "SCALER_PROGRAMS", 60)
    index = torch.arange(store.num_programs)
    sample = streamed.sample(index)
    assert torch.equal(sample, streamed.sample(index))
    assert torch.bincount(store.task[sample]).tolist() == [20, 20, 20]
    monkeypatch.setattr(module, "SCALER_TASKS", 2)
    assert sorted(torch.bincount(store.task[streamed.sample(index)], minlength=3).tolist()) == [
        0,
        30,
        30,
    ]
    monkeypatch.setattr(module, "SCALER_TASKS", 3)
    found = streamed.relative().fit_scaler(index, "standard").state_dict()
    exactly(found, store.relative().fit_scaler(sample, "standard").state_dict())


def test_needs_by_hand():
    task = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    batches = [torch.tensor([5, 1]), torch.tensor([3, 0]), torch.tensor([6])]
    parts, last = needs_of(task, batches)
    assert [part.tolist() for part in parts] == [[0, 1], [5, 6], [3]]
    assert last == {0: 1, 1: 1, 2: 2}
    assert needs_of(task, []) == ([], {})


def test_a_cache_that_is_gone_or_missing_is_told(root, tmp_path):
    streamed = load_programs(root, [PLATFORM], ReadSpec(cache=tmp_path, stream=True)).store
    for path in tmp_path.rglob("*.zst"):
        path.unlink()
    with pytest.raises(DataError, match="removed or changed since the start"):
        list(streamed.each_task(torch.arange(3)))
    with pytest.raises(PrunerError, match=r"data\.cache="):
        ReadSpec(stream=True)


def test_trees_take_all_features_into_memory(store, streamed):
    same, index = streamed.in_memory(), torch.arange(store.num_programs)
    assert torch.equal(same.rows, store.rows)
    equal(same.programs(index), store.programs(index))
