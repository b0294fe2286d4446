"""A fit that goes on from a trained model: what is kept, what is added up, what is refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pruner import features
from pruner.data.splits import TaskSplit
from pruner.errors import DataError, PrunerError
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.models.training.fit import fit, start_of
from pruner.models.training.recipe import Recipe, Start
from pruner.models.training.sampler import TaskBatches
from pruner.models.trees.xgboost import XGBoostRanker
from tests.models import synthetic

SMALL = partial(PaCM, width=8, dataflow_hidden=4, dataflow_width=8)


def tasks(platform, seed, names):
    rng = np.random.default_rng(seed)
    return ProgramTable.build(synthetic.task(rng, name, 12, platform=platform) for name in names)


def split(store):
    return TaskSplit(
        name="x", seed=0, train=store.keys[:-2], valid=store.keys[-2:-1], test=store.keys[-1:]
    )


def recipe(epochs=2, **changes):
    batches = TaskBatches(tasks=2, programs=8)
    options = {"accelerator": "cpu"}
    values = {"model": SMALL, "batches": batches, "trainer": options, "epochs": epochs, **changes}
    return Recipe(**values)


A = tasks("k80", 1, "abcd")
B = tasks("v100", 2, "efgh")
C = tasks("mi50", 3, "ijkl")


def weights(ranker):
    return ranker.state_dict()


def scores(ranker, store):
    every = torch.arange(store.num_programs)
    return np.concatenate([one.score for one in ranker.score_tasks(store, every)])


def test_a_chain_of_files_is_the_chain_in_one_process_and_adds_up_what_it_has_seen(tmp_path):
    first = fit(recipe(), A, split(A), folder=tmp_path / "a")
    given = Start(ranker=first.ranker, info=first.info)
    second = fit(recipe(), B, split(B), folder=tmp_path / "b", start=given)
    given = Start(ranker=second.ranker, info=second.info)
    third = fit(recipe(seed=5), C, split(C), folder=tmp_path / "c", start=given)

    again = fit(recipe(), B, split(B), folder=tmp_path / "b2", start=start_of(tmp_path / "a"))
    last = start_of(again.checkpoint)
    final = fit(recipe(seed=5), C, split(C), folder=tmp_path / "c2", start=last)
    synthetic.exactly(weights(final.ranker), weights(third.ranker))
    assert not np.array_equal(scores(third.ranker, C), scores(first.ranker, C))
    # what it has seen is added up
    _, info = load_checkpoint(final.checkpoint)
    assert info.seen_tasks == {"k80": list("abc"), "mi50": list("ijk"), "v100": list("efg")}
    assert info.identities == {'["x"]'}
    assert info.seen_workloads["v100"] == dict.fromkeys("efg", '["x"]')
    ancestors = [one["checkpoint"] for one in info.lineage]
    assert ancestors == ["a/best.safetensors", "b2/best.safetensors"]
    assert info.says_seen
    assert len(load_checkpoint(again.checkpoint)[1].lineage) == 1


def test_the_given_model_stays_where_no_epoch_is_better(tmp_path):
    first = fit(recipe(), A, split(A), folder=tmp_path / "a")
    useless = partial(torch.optim.SGD, lr=100.0)
    worse = recipe(optimizer=useless, schedule=None)
    found = fit(worse, A, split(A), folder=tmp_path / "b", start=start_of(first.checkpoint))
    value = first.numbers["best_valid"]
    assert found.numbers["best_valid"] >= value
    better = recipe(4, optimizer=partial(torch.optim.Adam, lr=3e-3))
    found = fit(better, A, split(A), folder=tmp_path / "c", start=start_of(first.checkpoint))
    assert found.numbers["best_valid"] >= value


def test_an_interrupted_fit_that_went_on_equals_a_whole_one(tmp_path):
    path = fit(recipe(), A, split(A), folder=tmp_path / "a").checkpoint
    whole = fit(recipe(4), B, split(B), folder=tmp_path / "whole", start=start_of(path))
    options = {"folder": tmp_path / "parts", "start": start_of(path)}
    assert not fit(recipe(4), B, split(B), stop_after=1, **options).finished
    resumed = fit(recipe(4), B, split(B), **options)
    synthetic.exactly(weights(resumed.ranker), weights(whole.ranker))
    assert whole.numbers["best_epoch"] == resumed.numbers["best_epoch"]


def test_the_scaler_is_kept_or_renewed(tmp_path):
    path = fit(recipe(), A, split(A), folder=tmp_path / "a").checkpoint
    kept = fit(recipe(1), B, split(B), folder=tmp_path / "b", start=start_of(path))
    start = start_of(path, scaling="renew")
    renewed = fit(recipe(1), B, split(B), folder=tmp_path / "c", start=start)
    ours = start.ranker.scaler.state_dict()
    learned = split(B).train
    index = B.programs_of([B.keys.index(key) for key in learned])
    fresh = B.relative().fit_scaler(index, "standard").state_dict()
    synthetic.exactly(kept.ranker.scaler.state_dict(), ours)
    synthetic.exactly(renewed.ranker.scaler.state_dict(), fresh)


def test_columns_that_never_varied_are_counted(tmp_path):
    flat = ProgramTable(
        keys=A.keys, rows=A.rows.clone(), row_start=A.row_start, dataflow=A.dataflow * 0,
        flags=A.flags, task=A.task, latency_s=A.latency_s, line=A.line, digest=A.digest,
        timed_s=A.timed_s,
    )  # fmt: skip
    flat.rows[:, 5] = 0
    path = fit(recipe(), flat, split(A), folder=tmp_path / "a").checkpoint
    found = fit(recipe(0), B, split(B), folder=tmp_path / "b", start=start_of(path))
    assert found.numbers["num_blind_columns"] >= 1 + B.dataflow.shape[2]
    same = fit(recipe(0), A, split(A), folder=tmp_path / "c", start=start_of(found.checkpoint))
    assert same.numbers["num_blind_columns"] >= 1 + B.dataflow.shape[2]  # still the old scaler


def test_other_dataflow_rows_and_trees_are_refused(tmp_path):
    ranker = NeuralRanker(PaCM(num_dataflow_rows=8), A.fit_scaler(torch.arange(4)))
    info = CheckpointInfo(
        model=ModelSpec(name="PaCM", arguments={"num_dataflow_rows": 8}),
        feature_version=features.FEATURE_SET_VERSION,
        dataflow="official",
    )
    save_checkpoint(tmp_path / "best.safetensors", ranker, info)
    with pytest.raises(DataError, match=r"8 dataflow rows.*10; features\.dataflow=official"):
        fit(recipe(), A, split(A), folder=tmp_path / "x", start=start_of(tmp_path))
    trees = fit(recipe(model=XGBoostRanker), A, split(A), folder=tmp_path / "trees")
    with pytest.raises(PrunerError, match="XGBoostRanker is always grown"):
        start_of(trees.checkpoint)


def test_test_tasks_that_it_has_seen_do_not_judge(tmp_path):
    start = start_of(fit(recipe(), A, split(A), folder=tmp_path / "a").checkpoint)
    assert start.unseen(split(B)).test == ()  # every synthetic task is the same work
    other = [key.__class__(**{**_fields(key), "workload_key": '["y"]'}) for key in B.keys]
    changed = TaskSplit(name="x", seed=0, train=(), valid=(), test=(*other, B.keys[0]))
    assert start.unseen(changed).test == tuple(other)


def _fields(key):
    names = ("platform", "task", "workload_key", "target", "fused")
    return {name: getattr(key, name) for name in names}


def test_a_fit_without_progress_ends_early_and_keeps_the_last_epoch(tmp_path):
    rising = partial(torch.optim.SGD, lr=1e-3, maximize=True)
    whole = TaskBatches(tasks=2, programs=12)  # one batch an epoch
    up = recipe(12, optimizer=rising, schedule=None, batches=whole, keep="last", patience=3)
    found = fit(up, A, split(A), folder=tmp_path)
    assert found.finished
    assert found.numbers["epochs"] == 4  # epoch 0 was the lowest
    assert found.numbers["best_epoch"] == 3
    for epochs in (12, 20):  # patience has ended it for good
        again = fit(replace(up, epochs=epochs), A, split(A), folder=tmp_path)
        assert (again.finished, again.numbers["epochs"]) == (True, 4)
