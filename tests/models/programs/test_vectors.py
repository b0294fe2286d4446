"""Features computed on the way are those held in memory, to the last bit, and so is a fit."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from pruner.data.root import RecordRoot
from pruner.data.splits import Split
from pruner.errors import DataError, PrunerError
from pruner.features.batch import featurize_groups
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.tlp import TLP
from pruner.models.programs import vectors as module
from pruner.models.programs.dataset import load_as, load_programs
from pruner.models.programs.forms import Vectors
from pruner.models.programs.loading import Share
from pruner.models.programs.stream import needs_of
from pruner.models.programs.vectors import SkeletonVectors
from pruner.models.training.fit import fit
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import EpochSampler, MixedBatches, TaskBatches
from pruner.models.trees.xgboost import XGBoostRanker
from tests.places import DATASETS

PLATFORM = "cpu-avx512"
TASKS = (
    "matmul_64_512_256",
    "conv2d_add_1_128_14_14_128_1_1_1_SAME",
    "pool_max_1_64_56_56_3_3_2_SAME",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three real tasks, of many skeletons."""
    folder = tmp_path_factory.mktemp("records")
    there = folder / "measure_records" / PLATFORM
    there.mkdir(parents=True)
    for name in TASKS:
        shutil.copy(DATASETS / "ansor/measure_records" / PLATFORM / f"{name}.json.gz", there)
    return RecordRoot(folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def store(root):
    return load_programs(root, [PLATFORM]).store


@pytest.fixture(scope="module")
def vectors(root, cache):
    return load_as(Vectors(num_workers=0), root, [PLATFORM], cache=cache).store


def equal(ours, theirs):
    """Two batches of programs, to the last bit."""
    assert torch.equal(ours.statement, theirs.statement)
    assert torch.equal(ours.program, theirs.program)
    assert torch.equal(ours.dataflow, theirs.dataflow)
    assert torch.equal(ours.platform, theirs.platform)
    assert ours.platforms == theirs.platforms
    for one, other in zip(ours.tokens.dense(), theirs.tokens.dense(), strict=True):
        assert torch.equal(one, other)


def test_what_needs_no_features_is_the_same(store, vectors):
    assert vectors.keys == store.keys
    assert vectors.num_programs == store.num_programs > 180
    assert min(len(one.skeletons) for one in vectors.vectors) > 1
    for name in ("task", "latency_s", "line", "label", "task_start", "platform"):
        assert torch.equal(getattr(vectors, name), getattr(store, name)), name
    np.testing.assert_array_equal(vectors.digest, store.digest)
    np.testing.assert_array_equal(vectors.timed_s, store.timed_s)
    assert vectors.num_dataflow_rows == store.num_dataflow_rows
    assert vectors.has_dataflow == store.has_dataflow


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_features_of_some_programs_are_those_in_memory(store, vectors, relative, share):
    generator = torch.Generator().manual_seed(1)
    index = (torch.rand(store.num_programs, generator=generator) < share).nonzero().squeeze(1)
    if relative:
        store, vectors = store.relative(), vectors.relative()
    views = list(vectors.each_task(index))
    assert torch.equal(torch.cat([view.programs for view in views]), index)
    for view in views:
        equal(view.store.programs(view.own), store.programs(view.programs))


def test_what_the_analyzer_makes_of_programs_and_failures_come_along(root, tmp_path):
    asked = {"draft": True, "failures": True, "cache": tmp_path}
    store = load_programs(root, [PLATFORM], draft=True, failures=True).store
    index = torch.arange(3, store.num_programs)
    sampler = EpochSampler(TaskBatches(tasks=2, programs=8), index, store.task[index], seed=3)
    for _ in ("read", "from the cache"):
        vectors = load_as(Vectors(num_workers=0), root, [PLATFORM], **asked).store
        assert torch.equal(vectors.latency_s, store.latency_s)
        ours = list(vectors.relative().loader(sampler, Share()))
        theirs = list(store.relative().loader(sampler, Share()))
        for one, other in zip(ours, theirs, strict=True):
            equal(one.programs, other.programs)
            assert torch.equal(one.programs.draft, other.programs.draft)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "plan",
    [
        TaskBatches(tasks=2, programs=8, per_task=40),
        TaskBatches(tasks=2, programs=8, window=1),
        MixedBatches(programs=16, window=2),
    ],
)
def test_batches_are_those_in_memory(store, vectors, plan, num_workers):
    index = torch.arange(5, store.num_programs)
    sampler = EpochSampler(plan, index, store.task[index], seed=3)
    loader = replace(vectors, num_workers=num_workers).relative().loader(sampler, Share())
    for epoch in (0, 1):  # worker processes stay
        loader.sampler.set_epoch(epoch)
        ours = list(loader)
        theirs = list(store.relative().loader(sampler, Share()))
        assert len(ours) == len(theirs) == len(loader)
        for one, other in zip(ours, theirs, strict=True):
            equal(one.programs, other.programs)
            for name in ("label", "task", "index"):
                assert torch.equal(getattr(one, name), getattr(other, name))


def test_a_share_has_the_features_of_its_part_and_the_labels_of_all(store, vectors):
    index = torch.arange(store.num_programs)
    sampler = EpochSampler(MixedBatches(programs=50), index, store.task, seed=0)
    loaders = [vectors.loader(sampler, Share(rank, 3)) for rank in range(3)]
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


def test_an_abandoned_epoch_leaves_nothing_behind_for_the_next(store, vectors):
    index = torch.arange(store.num_programs)
    sampler = EpochSampler(TaskBatches(tasks=2, programs=8), index, store.task, seed=3)
    loader = replace(vectors, num_workers=1).loader(sampler, Share())
    next(iter(loader))
    sampler.set_epoch(1)
    for one, other in zip(loader, store.loader(sampler, Share()), strict=True):
        equal(one.programs, other.programs)


SPLIT = {"name": "x", "seed": 0, "by_rows": True}


def fitted(programs, folder, stop_after=None, **changes):
    keys = programs.keys
    split = Split(train=keys, valid=keys, test=keys, **SPLIT)
    batches = TaskBatches(tasks=2, programs=8, window=2)
    options = {"accelerator": "cpu"}
    recipe = Recipe(batches=batches, trainer=options, epochs=2, **{"model": TenSetMLP, **changes})
    return fit(recipe, programs, split, folder=folder, stop_after=stop_after)


@pytest.mark.parametrize("changes", [{}, {"relative": False, "scale": "max"}, {"model": TLP}])
def test_a_fit_is_that_in_memory(store, vectors, tmp_path, changes):
    ours = fitted(vectors, tmp_path / "ours", **changes)
    theirs = fitted(store, tmp_path / "theirs", **changes)
    found, wanted = ours.ranker.state_dict(), theirs.ranker.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert ours.numbers["best_valid"] == theirs.numbers["best_valid"]


def test_a_resumed_fit_equals_an_uninterrupted_one(vectors, tmp_path):
    working = replace(vectors, num_workers=1)
    whole = fitted(working, tmp_path / "whole", keep="last")
    assert not fitted(working, tmp_path / "parts", stop_after=1, keep="last").finished
    again = fitted(working, tmp_path / "parts", keep="last")
    found, wanted = again.ranker.state_dict(), whole.ranker.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_normalisation_is_that_of_a_sample_which_the_class_states(store, vectors, monkeypatch):
    monkeypatch.setattr(module, "SCALER_PROGRAMS", 60)
    index = torch.arange(store.num_programs)
    sample = vectors.sample(index)
    assert torch.equal(sample, vectors.sample(index))
    assert torch.bincount(store.task[sample]).tolist() == [20, 20, 20]
    monkeypatch.setattr(module, "SCALER_TASKS", 2)
    assert sorted(torch.bincount(store.task[vectors.sample(index)], minlength=3).tolist()) == [
        0,
        30,
        30,
    ]
    monkeypatch.setattr(module, "SCALER_TASKS", 3)
    found = vectors.relative().fit_scaler(index, "standard").state_dict()
    wanted = store.relative().fit_scaler(sample, "standard").state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_what_comes_from_the_cache_is_what_was_read(root, cache, vectors, tmp_path):
    bare = load_as(Vectors(num_workers=0), root, [PLATFORM])
    hit = load_as(Vectors(num_workers=0), root, [PLATFORM], cache=cache)
    assert (bare.num_cached, hit.num_cached) == (0, len(TASKS))
    assert hit.tally == bare.tally
    index = torch.arange(vectors.num_programs)
    both = zip(hit.store.each_task(index), bare.store.each_task(index), strict=True)
    for one, other in both:
        equal(one.store.programs(one.own), other.store.programs(other.own))
    for one, other in zip(hit.store.vectors, bare.store.vectors, strict=True):
        assert torch.equal(one.center.statement, other.center.statement)
        assert torch.equal(one.center.dataflow, other.center.dataflow)
        assert torch.equal(one.center.tokens, other.center.tokens)
    features = load_programs(root, [PLATFORM], cache=cache)
    assert features.num_cached == 0  # entries of another form are not taken for it


def test_needs_by_hand():
    task = torch.tensor([0, 0, 1, 1, 2, 2, 2])
    batches = [torch.tensor([5, 1]), torch.tensor([3, 0]), torch.tensor([6])]
    needs = needs_of(task, batches)
    assert [part.tolist() for part in needs.parts] == [[0, 1], [5, 6], [3]]
    assert needs.last == {0: 1, 1: 1, 2: 2}
    assert needs_of(task, []).parts == []


def test_decisions_take_as_few_bytes_as_hold_them():
    for values, wanted in (([0, 512], np.uint16), ([-1, 3], np.int8), ([7, 255], np.uint8)):
        made = SkeletonVectors.of([], np.array([values]))
        assert made.decisions.dtype == wanted
        assert made.decisions.tolist() == [values]


def test_programs_that_lost_their_features_are_told(vectors, monkeypatch):
    def failing(*args, **kwargs):
        found = featurize_groups(*args, **kwargs)
        valid = found.valid.copy()
        valid[0] = False
        return replace(found, valid=valid, failures={0: "replay-error"})

    monkeypatch.setattr(module.features, "featurize_groups", failing)
    with pytest.raises(DataError, match="1 programs have no features any more"):
        list(vectors.each_task(torch.arange(3)))


def test_trees_are_refused_by_name(vectors):
    with pytest.raises(PrunerError, match="XGBoostRanker is grown from all features at once"):
        Vectors().learned_by(XGBoostRanker())
    with pytest.raises(PrunerError, match="store=features"):
        vectors.in_memory()


def test_primitives_are_left_out_where_nobody_reads_them(vectors):
    assert not Vectors().learned_by(TenSetMLP()).tokens
    assert Vectors().learned_by(TLP()).tokens
    without = replace(vectors, tokens=False).relative()
    (view,) = without.each_task(torch.arange(4))
    assert view.store.tokens is None
