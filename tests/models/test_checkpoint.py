import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from pruner.errors import DataError
from pruner.models.checkpoint.checkpoint import (
    CheckpointInfo,
    build_model,
    git_commit,
    load_checkpoint,
    save_checkpoint,
)
from pruner.models.ranker import NeuralRanker
from tests.models import synthetic

PACM = {"_target_": "pruner.models.networks.pacm.PaCM", "num_dataflow_rows": 10}
TLP = {"_target_": "pruner.models.networks.tlp.TLP", "platforms": ["k80", "v100"]}
ATTENTION = {"_target_": "pruner.models.networks.hardware_attention.HardwareAttention"}
LIGHTGBM = {"_target_": "pruner.models.trees.lightgbm.LightGBMRanker", "min_data_in_leaf": 1}
XGBOOST = {"_target_": "pruner.models.trees.xgboost.XGBoostRanker", "pooling": ["mean", "max"]}


def info(model):
    return CheckpointInfo(
        model=model,
        feature_version="f1",
        dataflow="paper",
        config={"seed": 3, "loss": {"lists": "task"}},
        git_commit="0123456789abcdef",
        seen_tasks={"v100": ["a", "b"]},
        metrics={"top1": 0.9},
    )


def ranker(model, store):
    everything = torch.arange(store.num_programs)
    built = build_model(model)
    if isinstance(built, torch.nn.Module):
        return NeuralRanker(built, store.fit_scaler(everything)).eval()
    built.fit(store, everything, everything[:0], seed=0, num_threads=1)
    return built


@pytest.mark.parametrize(
    "model",
    [PACM, TLP, ATTENTION, XGBOOST, LIGHTGBM],
    ids=["pacm", "mtl-tlp", "attention", "xgboost", "lightgbm"],
)
def test_a_loaded_checkpoint_scores_the_same(tmp_path, model):
    store = synthetic.store()
    saved = ranker(model, store)
    save_checkpoint(tmp_path / "best.pt", saved, info(model))
    loaded, found = load_checkpoint(tmp_path / "best.pt", feature_version="f1")
    assert found == info(model)
    index = store.programs_of([1])
    assert (loaded.score_store(store, index) == saved.score_store(store, index)).all()
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]


def test_another_feature_version_is_refused_in_one_line(tmp_path):
    save_checkpoint(tmp_path / "best.pt", ranker(PACM, synthetic.store()), info(PACM))
    with pytest.raises(DataError, match=r"version 'f1'.*computes 'f2'; retrain") as caught:
        load_checkpoint(tmp_path / "best.pt", feature_version="f2")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"not a checkpoint", b"", pickle.dumps({"format": 1}), pickle.dumps(print)]
)
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a Pruner checkpoint") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_the_command():
    with pytest.raises(DataError, match=r"does not exist; train one with train\.py"):
        load_checkpoint(Path("nowhere.pt"))


def test_classes_from_elsewhere_are_not_built():
    with pytest.raises(ValueError, match=r"must begin with pruner\.models"):
        build_model({"_target_": "os.system", "command": "true"})


def test_invalid_programs_score_minus_infinity():
    raw = synthetic.features(np.random.default_rng(0), 6, invalid=2)
    score = ranker(PACM, synthetic.store()).score(raw)
    assert np.isneginf(score[:2]).all()
    assert np.isfinite(score[2:]).all()


def test_commit_is_forty_digits_or_unknown():
    commit = git_commit().removesuffix("+changes")
    assert commit == "unknown" or (len(commit) == 40 and int(commit, 16) >= 0)
