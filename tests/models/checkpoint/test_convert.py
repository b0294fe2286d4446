"""Files of earlier versions are read; what is written is there whole or not at all."""

import resource
from contextlib import contextmanager

import pytest
import torch

from pruner.errors import DataError
from pruner.models.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from pruner.models.checkpoint.tensors import existing, load_content, load_tensors, save_tensors
from pruner.models.registry import ModelSpec
from pruner.models.training.fit import checkpoint_file
from pruner.models.training.training import CompleteFiles
from tests.models import synthetic, zoo
from tests.models.checkpoint.test_checkpoint import info, ranker

xgboost = pytest.importorskip("xgboost")
WRITERS = {
    "of ours": save_tensors,
    "of lightning": lambda path, content: CompleteFiles().save_checkpoint(content, str(path)),
}


@contextmanager
def disk_of(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_keeps_the_earlier_file_and_is_told_by_name(tmp_path, write):
    path = tmp_path / "last.safetensors"
    write(path, {"epoch": 1, "weight": torch.ones(3)})
    with disk_of(100_000), pytest.raises(OSError, match=str(path)):
        write(path, {"epoch": 2, "weight": torch.ones(100_000)})
    found = load_content(path)
    assert found["epoch"] == 1
    assert found["weight"].tolist() == [1.0, 1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]


def test_what_lightning_saves_of_a_fit_comes_back(tmp_path):
    """Optimizers have numbers as keys; states of callbacks have separators in theirs."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    content = {
        "optimizer_states": [optimizer.state_dict()],
        "callbacks": {"Best{'monitor': 'valid/top1'}": {"best": torch.tensor(0.5), "inf": 1e400}},
    }
    ways = CompleteFiles()
    ways.save_checkpoint(content, str(tmp_path / "last.safetensors"))
    found = ways.load_checkpoint(str(tmp_path / "last.safetensors"), weights_only=True)
    assert found["callbacks"] == content["callbacks"]
    again = torch.optim.AdamW([weight], lr=7)
    again.load_state_dict(found["optimizer_states"][0])
    synthetic.exactly(again.state[weight], optimizer.state[weight])
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("model", zoo.specs().values(), ids=zoo.specs())
def test_a_checkpoint_of_an_earlier_version_scores_the_same(tmp_path, model):
    store = synthetic.store()
    saved = ranker(model, store)
    index = store.programs_of([1])
    old_checkpoint(tmp_path / "best.pt", saved, model)
    loaded, found = load_checkpoint(checkpoint_file(tmp_path), feature_version="f1")
    assert found == info(model)
    assert (loaded.score_store(store, index) == saved.score_store(store, index)).all()


def old_checkpoint(path, saved, model):
    save_checkpoint(path.with_suffix(".safetensors"), saved, info(model))
    content = load_tensors(path.with_suffix(".safetensors"))
    if model.name == "XGBoostRanker":
        raw = bytearray(saved.booster.save_raw("ubj"))
        content["state"]["booster"] = torch.frombuffer(raw, dtype=torch.uint8)
    torch.save(content, path)
    path.with_suffix(".safetensors").unlink()


def test_files_of_this_version_come_before_earlier_ones(tmp_path):
    new, old = tmp_path / "best.safetensors", tmp_path / "best.pt"
    assert existing(new) == new
    old.touch()
    assert existing(new) == old
    new.touch()
    assert existing(new) == new


def test_an_old_archive_with_a_flipped_bit_is_refused(tmp_path):
    """PyTorch's own reader takes it: a model that ranks a little otherwise."""
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.full((1000,), 1.5)}, path)
    whole = path.read_bytes()
    place = whole.index(torch.full((9,), 1.5).numpy().tobytes()) + 402
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert torch.load(path, weights_only=True)["weight"].tolist() != [1.5] * 1000
    with pytest.raises(DataError, match="does not match its checksum"):
        load_content(path)


@pytest.mark.parametrize("name", ["PaCM", "XGBoostRanker"])
def test_tensors_that_claim_more_than_an_old_file_has_are_refused(tmp_path, name):
    """A value that is repeated without being there: 4 bytes that become megabytes or terabytes."""
    model = ModelSpec(name=name)
    old_checkpoint(tmp_path / "best.pt", ranker(model, synthetic.store()), model)
    content = torch.load(tmp_path / "best.pt", weights_only=True)
    if name == "PaCM":
        weights = content["state"]["network"]
        weights["head.weight"] = torch.zeros(1).expand(weights["head.weight"].shape)
    else:
        content["state"]["booster"] = torch.zeros(1, dtype=torch.uint8).expand(2**40)
    torch.save(content, tmp_path / "best.pt")
    with pytest.raises(DataError, match="claims more values than the file has"):
        load_checkpoint(tmp_path / "best.pt")
