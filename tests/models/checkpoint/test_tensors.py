"""Content in safetensors' format: there whole or not at all, and refused where a bit differs."""

import json

import pytest
import torch
from safetensors.torch import save_file

from pruner.errors import DataError
from pruner.models.checkpoint.tensors import load_tensors, save_tensors

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
