import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pruner.errors import DataError, PrunerError
from pruner.features import FEATURE_SET_VERSION
from pruner.models.checkpoint.checkpoint import (
    CheckpointInfo,
    git_commit,
    load_checkpoint,
    save_checkpoint,
)
from pruner.models.checkpoint.tensors import load_tensors, save_tensors
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec, models_with
from pruner.models.trees.xgboost import XGBoostRanker
from tests.models import synthetic, zoo

PACM = ModelSpec(name="PaCM", arguments={"num_dataflow_rows": 10})
MODELS_SAVED = {
    **zoo.specs(),
    "mtl-tlp": ModelSpec(name="TLP", arguments={"platforms": ["k80", "v100"]}),
    "xgboost-mean": ModelSpec(name="XGBoostRanker", arguments={"pooling": ["mean", "max"]}),
}


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
    built = model.build()
    if isinstance(built, torch.nn.Module):
        return NeuralRanker(built, store.fit_scaler(everything)).eval()
    built.fit(store, everything, everything[:0], seed=0, num_threads=1)
    return built


@pytest.mark.parametrize("model", MODELS_SAVED.values(), ids=MODELS_SAVED)
def test_a_loaded_checkpoint_scores_the_same(tmp_path, model):
    store = synthetic.store()
    saved = ranker(model, store)
    index = store.programs_of([1])
    path = tmp_path / "best.safetensors"
    save_checkpoint(path, saved, info(model))
    loaded, found = load_checkpoint(path, feature_version="f1")
    assert found == info(model)
    assert (loaded.score_store(store, index) == saved.score_store(store, index)).all()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("model", zoo.specs().values(), ids=zoo.specs())
def test_half_precision_rounds_weights_and_nothing_else(tmp_path, model):
    name = "best.safetensors"
    store = synthetic.store()
    saved = ranker(model, store)
    save_checkpoint(tmp_path / name, saved, info(model), half=True)
    loaded, _ = load_checkpoint(tmp_path / name)
    index = store.programs_of([1])
    scores = [one.score_store(store, index) for one in (saved, loaded)]
    if isinstance(saved, NeuralRanker):
        save_checkpoint(tmp_path / f"whole-{name}", saved, info(model))
        large = (tmp_path / f"whole-{name}").stat().st_size
        assert (tmp_path / name).stat().st_size < 0.7 * large
        for weight in saved.network.parameters():
            weight.data = weight.data.half().float()
        for one, other in zip(
            saved.state_dict().values(), loaded.state_dict().values(), strict=True
        ):
            assert one.dtype == other.dtype
            assert (one == other).all()
    gaps = np.subtract.outer(scores[0], scores[0])
    apart = np.abs(gaps) > 0.01 * np.abs(gaps).max()
    assert (np.sign(gaps) == np.sign(np.subtract.outer(scores[1], scores[1])))[apart].all()


def test_weights_beyond_half_precision_are_refused(tmp_path):
    saved = ranker(PACM, synthetic.store())
    saved.network.head.weight.data.fill_(1e5)
    with pytest.raises(PrunerError, match=r"head\.weight has weights beyond float16"):
        save_checkpoint(tmp_path / "best.safetensors", saved, info(PACM), half=True)


OFFICIAL = ModelSpec(name="PaCM", arguments={"num_dataflow_rows": 8})
BLIND = ModelSpec(name="PaCM", arguments={"use_dataflow": False})


@pytest.mark.parametrize(
    ("model", "seen", "holds"),
    [
        (PACM, {"v100": ["a"]}, True),
        (PACM, {"v100": ["a"], "cpu-avx2": ["a"]}, False),
        (PACM, {}, False),
        (OFFICIAL, {"cpu-avx2": ["a"]}, True),
        (OFFICIAL, {}, True),
        (BLIND, {"cpu-avx2": ["a"]}, True),
    ],
)
def test_older_features_load_where_they_are_as_they_were(tmp_path, model, seen, holds):
    path, store = tmp_path / "best.safetensors", synthetic.store()
    about = replace(info(model), feature_version="official-1", seen_tasks=seen)
    save_checkpoint(path, ranker(model, store), about)
    if holds:
        assert load_checkpoint(path, feature_version=FEATURE_SET_VERSION)[1] == about
        return
    told = r"best.*: made for feature-set version 'official-1'.*computes '.*'; retrain"
    with pytest.raises(DataError, match=told) as caught:
        load_checkpoint(path, feature_version=FEATURE_SET_VERSION)
    assert "\n" not in str(caught.value)


def test_what_an_ancestor_does_not_tell_may_have_been_a_cpu(tmp_path):
    untold = [{"checkpoint": "x", "sha256": "", "says_seen": False}]
    about = replace(info(PACM), feature_version="official-1", lineage=untold)
    save_checkpoint(tmp_path / "best.safetensors", ranker(PACM, synthetic.store()), about)
    with pytest.raises(DataError, match="official-1"):
        load_checkpoint(tmp_path / "best.safetensors", feature_version=FEATURE_SET_VERSION)


@pytest.mark.parametrize(
    "content", [b"not a checkpoint", b"", pickle.dumps({"format": 1}), pickle.dumps(print)]
)
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a Pruner checkpoint") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["pruner.models.networks.pacm.PaCM", "pruner.models.old.PaCM"])
def test_an_old_checkpoint_s_dotted_path_counts_by_its_end(tmp_path, path):
    store = synthetic.store()
    saved = ranker(PACM, store)
    save_checkpoint(tmp_path / "best.safetensors", saved, info(PACM))
    content = load_tensors(tmp_path / "best.safetensors")
    assert content["model"] == {"name": "PaCM", "arguments": {"num_dataflow_rows": 10}}
    content |= {"format": 1, "model": {"_target_": path, "num_dataflow_rows": 10}}
    torch.save(content, tmp_path / "old.pt")
    loaded, found = load_checkpoint(tmp_path / "old.pt")
    assert found == info(PACM)
    index = store.programs_of([1])
    assert (loaded.score_store(store, index) == saved.score_store(store, index)).all()


class Narrow(TenSetMLP):
    def __init__(self):
        super().__init__(width=4)


class ReadsAValue(TenSetMLP):
    """Its width is a value that it computes, which PyTorch cannot without memory."""

    def __init__(self):
        super().__init__(width=int(torch.tensor([1, 3]).sum().item()))


@pytest.mark.parametrize("model", [Narrow, ReadsAValue])
def test_a_class_of_the_user_is_read_where_it_is_given(tmp_path, model):
    models = models_with([model])
    own = ModelSpec.of(model)
    store = synthetic.store()
    saved = NeuralRanker(own.build(models), store.fit_scaler(torch.arange(store.num_programs)))
    save_checkpoint(tmp_path / "best.safetensors", saved.eval(), info(own))
    with pytest.raises(DataError, match=rf"holds a {model.__name__}, .* give a class of your own"):
        load_checkpoint(tmp_path / "best.safetensors")
    loaded, _ = load_checkpoint(tmp_path / "best.safetensors", models=models)
    index = store.programs_of([1])
    assert (loaded.score_store(store, index) == saved.score_store(store, index)).all()


def test_data_imports_no_code():
    for content in (
        {"_target_": "os.system", "command": "true"},
        {"name": "os.system", "arguments": {"command": "true"}},
    ):
        with pytest.raises(DataError, match=r"holds a (os\.)?system, which is not among PaCM, "):
            ModelSpec.from_content(content).build()


def test_a_model_that_a_checkpoint_could_not_name_is_refused():
    other = type("PaCM", (Narrow,), {})
    with pytest.raises(PrunerError, match="the name is taken"):
        models_with([other])
    assert ModelSpec.of(partial(PaCM, width=8)) == ModelSpec(name="PaCM", arguments={"width": 8})
    for factory in (lambda: PaCM(), partial(XGBoostRanker, 3)):
        with pytest.raises(PrunerError, match=r"a class or a|by keyword"):
            ModelSpec.of(factory)


def test_invalid_programs_score_minus_infinity():
    raw = synthetic.features(np.random.default_rng(0), 6, invalid=2)
    score = ranker(PACM, synthetic.store()).score(raw)
    assert np.isneginf(score[:2]).all()
    assert np.isfinite(score[2:]).all()


def test_commit_is_forty_digits_or_unknown():
    commit = git_commit().removesuffix("+changes")
    assert commit == "unknown" or (len(commit) == 40 and int(commit, 16) >= 0)


CONTENT = {
    "format": 2,
    "nothing": None,
    "list": [1, {"a": "ü"}],
    "state": {"network": {"a.b": torch.full((1000,), 1.5), "scalar": torch.tensor(3)}, "on": True},
}


def test_what_was_saved_is_read(tmp_path):
    save_tensors(tmp_path / "a.safetensors", CONTENT)
    found = load_tensors(tmp_path / "a.safetensors")
    weights = found["state"].pop("network")
    assert found == {**CONTENT, "state": {"on": True}}
    assert weights.keys() == CONTENT["state"]["network"].keys()
    for name, tensor in CONTENT["state"]["network"].items():
        assert weights[name].dtype == tensor.dtype
        assert torch.equal(weights[name], tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_weights_that_share_their_values_and_parts_of_others_are_kept(tmp_path):
    one = torch.arange(12.0)
    save_tensors(tmp_path / "a.safetensors", {"a": one, "b": one, "c": one.view(3, 4).T})
    found = load_tensors(tmp_path / "a.safetensors")
    assert torch.equal(found["b"], one)
    assert torch.equal(found["c"], one.view(3, 4).T)


@pytest.mark.parametrize("what", ["a weight", "the JSON"])
def test_a_flipped_bit_is_refused(tmp_path, what):
    path = tmp_path / "a.safetensors"
    save_tensors(path, CONTENT)
    whole = path.read_bytes()
    weights = torch.full((9,), 1.5).numpy().tobytes()
    place = whole.index(b"format") + 9 if what == "the JSON" else whole.index(weights) + 402
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(DataError, match="checksum"):
        load_tensors(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"pruner": json.dumps({})}])
def test_files_of_other_projects_are_refused(tmp_path, metadata):
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(DataError, match="another project"):
        load_tensors(tmp_path / "a.safetensors")
