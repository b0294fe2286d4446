"""Hostile and malformed checkpoints: each is refused in one line, nothing in it runs."""

import io
import os
import time
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch

from pruner.data.tenset.safe_pickle import UnsafePickle
from pruner.data.tenset.task_pickle import read_task_pickle
from pruner.errors import DataError
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from pruner.models.checkpoint.official import read_official
from pruner.models.checkpoint.tensors import load_content, load_tensors, save_tensors
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.models.training.training import _resumed
from tests.models import synthetic


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def raw(*opcodes):
    return b"\x80\x04" + b"".join(opcodes) + b"."


def deep_opcodes(levels=60):
    """A tuple that refers twice to one that refers twice, and so on: its hash takes 2^60 steps."""
    one = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(levels))
    return b")\x94" + one


BOMBS = {
    "a key": raw(b"}", deep_opcodes(), b"K\x01s"),
    "a key behind a mark": raw(b"}(", deep_opcodes(), b"K\x01u"),
    "a mapping from a mark": raw(b"(", deep_opcodes(), b"K\x01d"),
    "a member": raw(b"\x8f(", deep_opcodes(), b"\x90"),
    "of a frozen set": raw(b"(", deep_opcodes(), b"\x91"),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_keys_that_take_for_ever_are_refused_at_once(bomb, tmp_path):
    start = time.process_time()
    for name, read in (("a.pkl", read_official), ("a.task.pkl", read_task_pickle)):
        (tmp_path / name).write_bytes(bomb)
        with pytest.raises(DataError):
            read(tmp_path / name)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("name", ["builtins set", "collections OrderedDict"])
def test_what_a_name_would_look_up_is_refused_too(name, tmp_path):
    module, word = name.split()
    head = b"c" + module.encode() + b"\n" + word.encode() + b"\n"
    for value in (b"](" + deep_opcodes() + b"K\x01\x86e", b"](" + deep_opcodes() + b"e"):
        (tmp_path / "a.pkl").write_bytes(raw(head, value, b"\x85R"))
        with pytest.raises(DataError):
            read_official(tmp_path / "a.pkl")


def good(path):
    store = synthetic.store()
    spec = ModelSpec(name="TenSetMLP", arguments={"width": 8})
    ranker = NeuralRanker(spec.build(), store.fit_scaler(torch.arange(store.num_programs))).eval()
    save_checkpoint(path, ranker, CheckpointInfo(model=spec, feature_version="1", dataflow="paper"))
    return path


def changed(content, where, value):
    """A copy with one entry replaced, or left out where the value is `...`."""
    *way, last = where.split("/")
    copy = dict(content)
    node = copy
    for name in way:
        node[name] = dict(node[name])
        node = node[name]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return copy


MALFORMED = [
    ("model", ...), ("model", 7), ("model", {}), ("model/name", "git_commit"),
    ("model/name", ["PaCM"]), ("model/name", "RankingNetwork"), ("model/arguments", 7),
    ("model/arguments/width", 10**7), ("model/arguments/width", "x"),
    ("model/arguments/width", -1), ("model/arguments/no_such", 1),
    ("model", {"_target_": "os.system", "command": "true"}),
    ("model", {"_target_": "pruner.models.official.ZipFile", "file": "F", "mode": "w"}),
    ("model/name", "XGBoostRanker"), ("state", ...), ("state", 7), ("state/network", 7),
    ("state/network", {}), ("state/network", {"weight": torch.zeros(3)}), ("state/scaler", ...),
    ("state/scaler", {}), ("state/relative", "yes"), ("state", {"booster": b"x"}),
    ("feature_version", 3), ("dataflow", "none"), ("dataflow", ["paper"]), ("config", 7),
    ("seen_tasks", 7), ("seen_tasks", {"v100": 7}), ("metrics", []), ("format", 3),
    ("seen_workloads", 7), ("seen_workloads", {"v100": []}), ("seen_workloads", {"a": {"b": []}}),
    ("lineage", {}), ("lineage", [7]), ("lineage", [{"says_seen": "yes"}]),
]  # fmt: skip


@pytest.mark.parametrize(("where", "value"), MALFORMED, ids=str)
def test_a_malformed_checkpoint_is_refused_in_one_line(tmp_path, where, value):
    content = load_tensors(good(tmp_path / "good.safetensors"))
    path = tmp_path / "bad.pt"  # of an earlier version
    torch.save(changed(content, where, value), path)
    twin = tmp_path / "bad.safetensors"
    if where != "state" or value in (..., 7):  # bytes, which JSON does not have
        save_tensors(twin, changed(content, where, value))
    for bad in (path, twin):
        with pytest.raises(DataError) as error:
            load_checkpoint(bad)
        assert "\n" not in str(error.value)
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, twin.name, "good.safetensors"}


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    content = load_tensors(good(tmp_path / "good.safetensors"))
    name = next(iter(content["state"]["network"]))
    content["state"]["network"][name].fill_(float("nan"))
    save_tensors(tmp_path / "bad.safetensors", content)
    with pytest.raises(DataError, match="not numbers"):
        load_checkpoint(tmp_path / "bad.safetensors")


def test_nothing_in_an_archive_runs(tmp_path):
    """Of a checkpoint, and of what a resumed fit goes on from."""
    mark = tmp_path / "ran"
    for content in (Touch(mark), {"format": 2, "x": Touch(mark)}, {"state_dict": Touch(mark)}):
        torch.save(content, tmp_path / "last.ckpt")
        with pytest.raises(UnsafePickle, match="refused"):
            load_content(tmp_path / "last.ckpt")
        with pytest.raises(DataError):
            load_checkpoint(tmp_path / "last.ckpt")
        with pytest.raises(DataError, match="delete it and resume"):
            _resumed(tmp_path / "last.ckpt", torch.nn.Linear(1, 1))
    assert not mark.exists()


def test_a_fit_does_not_go_on_from_another_model(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": torch.nn.Linear(2, 1).state_dict()}, path)
    _resumed(path, torch.nn.Linear(2, 1))
    with pytest.raises(DataError, match="another model"):
        _resumed(path, torch.nn.Linear(3, 1))
    for content in ([], {}, {"state_dict": 7}, {"state_dict": {"weight": 7}}):
        torch.save(content, path)
        with pytest.raises(DataError, match="damaged"):
            _resumed(path, torch.nn.Linear(2, 1))


@pytest.mark.parametrize("write", [save_tensors, lambda path, content: torch.save(content, path)])
def test_every_cut_of_a_checkpoint_is_refused(tmp_path, write):
    path = tmp_path / "cut"
    write(path, load_tensors(good(tmp_path / "good.safetensors")))
    whole = path.read_bytes()
    for cut in [1, 8, len(whole) - 1, *range(0, len(whole), max(1, len(whole) // 20))]:
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError) as error:
            load_checkpoint(path)
        assert "\n" not in str(error.value)


def npz(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, payload in members.items():
            archive.writestr(f"{name}.npy", payload)
    return path


def array_bytes():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("place", "value"),
    [(8, 99), (6, 1)],  # compression method, flags: encrypted
    ids=["packed in an unknown way", "encrypted"],
)
def test_archives_that_nobody_can_unpack(tmp_path, place, value):
    path = npz(tmp_path / "a.npz", norm_statement=array_bytes())
    payload = bytearray(path.read_bytes())
    payload[place] = value  # of the local header, and of the directory
    payload[payload.rindex(b"PK\x01\x02") + place + 2] = value
    path.write_bytes(payload)
    with pytest.raises(DataError):
        read_official(path)


def test_every_flipped_bit_of_an_old_pickle_is_an_error_or_data(tmp_path, record_property):
    """Of the pickle of an earlier version's checkpoint: whatever comes out, nothing runs."""
    content = load_tensors(good(tmp_path / "good.safetensors"))
    path = tmp_path / "good.pt"
    torch.save(content, path)
    with zipfile.ZipFile(path) as archive:
        members = {m.filename: archive.read(m) for m in archive.infolist()}
    (name,) = (name for name in members if name.endswith("data.pkl"))
    rng = np.random.default_rng(0)
    record_property("tried", 150)
    for _ in range(150):
        damaged = bytearray(members[name])
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        with zipfile.ZipFile(path, "w") as archive:
            for other, payload in members.items():
                archive.writestr(other, bytes(damaged) if other == name else payload)
        with suppress(DataError):
            load_checkpoint(path)
    assert {p.name for p in tmp_path.iterdir()} == {"good.pt", "good.safetensors"}
