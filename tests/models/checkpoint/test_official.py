"""Official checkpoints: read without running them, mapped one to one, scored as they should."""

import contextlib
import io
import os
import pickle
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from pruner.data.tenset.safe_pickle import UnsafePickle
from pruner.errors import DataError
from pruner.models.checkpoint.official import (
    load_modules,
    official_ranker,
    our_name,
    read_official,
    without_subnormals,
)
from pruner.models.programs.batch import ProgramBatch
from tests.models.synthetic import exactly

OFFICIAL_MODULE = "tvm.auto_scheduler.cost_model.pam_model"
NUM_PARAMETERS = 417_409


def official_network():
    """A module with the layers and names of the release; its class claims to be the release's."""
    network = sys.modules[OFFICIAL_MODULE].PAMModule()
    network.segment_encoder = nn.Sequential(
        nn.Linear(174, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    )
    network.norm = nn.BatchNorm1d(256)
    network.fuse = nn.Sequential(nn.Linear(384, 256), nn.ReLU())
    network.l0 = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    network.l1 = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    network.gemm_encoder = nn.Sequential(
        nn.Linear(23, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU()
    )
    network.attention = nn.MultiheadAttention(128, 4)
    network.decoder = nn.Linear(256, 1)
    return network


@pytest.fixture
def network(monkeypatch):
    kind = type("PAMModule", (nn.Module,), {"__module__": OFFICIAL_MODULE})
    parts = OFFICIAL_MODULE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[OFFICIAL_MODULE], "PAMModule", kind, raising=False)
    torch.manual_seed(0)
    made = official_network()
    with torch.no_grad():
        for value in made.state_dict().values():
            if value.ndim == 1:  # biases and batch norm, which start as zeros and ones
                value.add_(0.1 * torch.rand(value.shape))
    return made


@pytest.fixture
def maxima():
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.uniform(1, 9, 174)).float(), torch.ones(23) * 3


def write(path, content, protocol=3):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_every_parameter_of_a_pickle_arrives_once(tmp_path, network, maxima, protocol):
    path = write(tmp_path / "x.pkl", (network, "base_only", *maxima), protocol)
    weights = read_official(path)
    ranker = official_ranker(weights)
    assert sum(p.numel() for p in ranker.network.parameters()) == NUM_PARAMETERS
    expected, found = network.state_dict(), ranker.network.state_dict()
    assert {our_name(name) for name in expected} == set(found)
    for name, value in expected.items():
        assert torch.equal(found[our_name(name)], value), name
    assert torch.equal(ranker.scaler.statement_scale, maxima[0])
    assert torch.equal(ranker.scaler.dataflow_scale, maxima[1])


def test_an_archive_says_the_same_as_the_pickle(tmp_path, network, maxima):
    arrays = {f"param.{name}": value.numpy() for name, value in network.state_dict().items()}
    np.savez(tmp_path / "x.npz", norm_statement=maxima[0], norm_dataflow=maxima[1], **arrays)
    one = read_official(tmp_path / "x.npz")
    two = read_official(write(tmp_path / "x.pkl", (network, "base_only", *maxima)))
    exactly(one.state, two.state)


def by_hand(state, maxima, programs, flow):
    """The official network in NumPy, program by program; batch statistics in the norm."""
    w = {name: value.double().numpy() for name, value in state.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def relu(x):
        return np.maximum(x, 0)

    hidden = []
    for rows, block in zip(programs, flow, strict=True):
        x = relu(linear(rows / maxima[0], "segment_encoder.0"))
        summed = relu(linear(x, "segment_encoder.2")).sum(0)
        y = relu(linear(block / maxima[1], "gemm_encoder.0"))
        y = relu(linear(y, "gemm_encoder.2"))
        qkv = y @ w["attention.in_proj_weight"].T + w["attention.in_proj_bias"]
        heads = []
        for h in range(4):
            q, k, v = (qkv[:, part * 128 + h * 32 : part * 128 + (h + 1) * 32] for part in range(3))
            weight = np.exp(q @ k.T / np.sqrt(32))
            heads.append(weight / weight.sum(1, keepdims=True) @ v)
        attended = linear(np.concatenate(heads, 1), "attention.out_proj") + y
        hidden.append(relu(linear(np.concatenate([summed, attended.sum(0)]), "fuse.0")))
    x = np.stack(hidden)
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * w["norm.weight"] + w["norm.bias"]
    x = x + relu(linear(x, "l0.0"))
    x = x + relu(linear(x, "l1.0"))
    return linear(x, "decoder")[:, 0]


def test_scores_are_those_of_the_official_network(tmp_path, network, maxima):
    rng = np.random.default_rng(2)
    programs = [rng.uniform(0, 9, (rows, 174)) for rows in (5, 2, 7, 4)]
    flow = rng.uniform(0, 5, (4, 8, 23))
    ranker = official_ranker(read_official(write(tmp_path / "x.pkl", (network, "m", *maxima))))
    batch = ProgramBatch(
        statement=torch.from_numpy(np.concatenate(programs)).float(),
        program=torch.repeat_interleave(torch.arange(4), torch.tensor([5, 2, 7, 4])),
        dataflow=torch.from_numpy(flow).float(),
    )
    with torch.no_grad():
        score = ranker(batch).numpy()
    expected = by_hand(network.state_dict(), [m.numpy() for m in maxima], programs, flow)
    np.testing.assert_allclose(score, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


class Call:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def hostile(marker):
    shell, touch = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    inner = io.BytesIO()
    torch.save(Call(os.system, shell), inner)
    yield "os.system", Call(os.system, shell)
    yield "eval", Call(eval, touch)
    yield "nested", {"a": [Call(exec, touch)]}
    yield "in a storage", Call(torch.storage._load_from_bytes, inner.getvalue())
    yield "getattr", Call(getattr, "os", "system")
    yield "torch.load", Call(torch.load, str(marker))
    yield "another module", nn.Conv2d(1, 1, 1)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_hostile_file_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    for name, value in hostile(marker):
        path = write(tmp_path / "x.pkl", (value, "base_only", 1, 2), protocol)
        with pytest.raises(DataError, match=r"x\.pkl: ") as caught:
            read_official(path)
        assert "\n" not in str(caught.value), name
        assert not marker.exists(), name


def test_a_tensor_may_not_reach_outside_its_storage():
    function, args = torch.ones(4).__reduce_ex__(2)
    for offset, size, stride in (
        (0, (5,), (1,)),
        (2, (3,), (1,)),
        (0, (2, 3), (3, 1)),
        (-1, (1,), (1,)),
    ):
        with pytest.raises(UnsafePickle):
            load_modules(pickle.dumps(Call(function, args[0], offset, size, stride, *args[4:])))


def test_a_module_may_not_change_a_later_file(network, maxima, tmp_path):
    # BUILD on a class that the reader handed out sets attributes of that class only.
    evil = b"\x80\x02ctorch.nn.modules.linear\nLinear\nN}X\x05\x00\x00\x00stateK\x01s\x86b."
    with contextlib.suppress(DataError):
        load_modules(evil)
    read_official(write(tmp_path / "x.pkl", (network, "base_only", *maxima)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        b"PK\x03\x04 not an archive",
        pickle.dumps((1, 2)),
        pickle.dumps({"state_dict": {}}),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.pkl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_official(path)
    assert "\n" not in str(caught.value)


def test_incomplete_foreign_and_odd_values_are_named(tmp_path, network, maxima):
    torch.save(network.state_dict(), tmp_path / "x.pth")
    with pytest.raises(DataError, match="without column maxima"):
        read_official(tmp_path / "x.pth")
    with torch.no_grad():
        network.decoder.bias[0] = torch.nan
    with pytest.raises(DataError, match=r"decoder\.bias holds values that are not finite"):
        read_official(write(tmp_path / "x.pkl", (network, "base_only", *maxima)))
    with torch.no_grad():
        network.decoder.bias[0] = 0
    with pytest.raises(DataError, match="23 positive column maxima"):
        read_official(write(tmp_path / "x.pkl", (network, "base_only", maxima[0], -maxima[1])))
    del network.decoder
    weights = read_official(write(tmp_path / "x.pkl", (network, "base_only", *maxima)))
    with pytest.raises(DataError, match="differs in head"):
        official_ranker(weights)


def test_numbers_too_small_to_matter_become_zero(tmp_path, network, maxima):
    tiny = torch.finfo(torch.float32).smallest_normal
    values = torch.tensor([1.0, -tiny, tiny / 2, -1e-44, 0.0])
    assert without_subnormals(values).tolist() == [1.0, -tiny, 0.0, 0.0, 0.0]
    counter = torch.tensor(3)
    assert without_subnormals(counter) is counter
    with torch.no_grad():
        network.attention.in_proj_weight[5, 7] = tiny / 2
        network.attention.in_proj_weight[5, 8] = tiny
    ranker = official_ranker(read_official(write(tmp_path / "x.pkl", (network, "m", *maxima))))
    assert ranker.network.attention.in_proj_weight[5, 7:9].tolist() == [0.0, tiny]


@pytest.mark.parametrize("name", ["pam_k80_1500", "fine_tune_pam_a100"])
def test_the_released_weights_fit(shared, name):
    path = shared / "data" / "official-checkpoints" / f"{name}.npz"
    if not path.is_file():
        pytest.skip("the released weights are absent")
    ranker = official_ranker(read_official(path))
    assert sum(p.numel() for p in ranker.network.parameters()) == NUM_PARAMETERS
    # pruner-facts 4.3: the shipped maximum of the squared loop product is twice the plain one.
    if name == "pam_k80_1500":
        maxima = ranker.scaler
        assert maxima.dataflow_scale[0] == pytest.approx(93.36, abs=0.01)
        assert maxima.statement_scale[161] == pytest.approx(46.68, abs=0.01)
