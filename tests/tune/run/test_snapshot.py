"""The state of a run on disk: arrays and JSON, whole or refused, and nothing in it runs."""

import os
import pickle
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from pruner.errors import DataError
from pruner.tune.run.loop import load_state, save_state

STATE = {
    "rng": np.random.default_rng(3).bit_generator.state,  # integers of 128 bits
    "best_s": np.array([np.inf, 1.5, np.nan]),
    "tasks": {"a b": {"rows": np.arange(6).reshape(2, 3), "met": True, "model": None}},
    "told": [np.zeros((0, 4), np.int64), [1, 2.5, "text \ud7ff"], np.float32(0.1), np.array(7)],
}


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_a_state_comes_back_bit_by_bit(tmp_path):
    save_state(tmp_path / "state.npz", STATE)
    found = load_state(tmp_path / "state.npz")
    assert same(found, STATE | {"told": [*STATE["told"][:2], float(np.float32(0.1)), np.array(7)]})
    rng = np.random.default_rng(0)
    rng.bit_generator.state = found["rng"]
    assert rng.random() == np.random.default_rng(3).random()


@pytest.mark.parametrize(
    "odd",
    [float("nan"), {"array": "0"}, {1: 2}, object(), np.array([None]), np.array(["a"]), b"x"],
    ids=["nan", "array", "key", "object", "objects", "text", "bytes"],
)
def test_what_is_no_plain_value_is_not_written(tmp_path, odd):
    save_state(tmp_path / "state.npz", {"round": 1})
    with pytest.raises((TypeError, ValueError)):
        save_state(tmp_path / "state.npz", {"round": 2, "odd": odd})
    assert load_state(tmp_path / "state.npz") == {"round": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_every_cut_and_every_flipped_bit_is_told(tmp_path):
    """Or it does not matter: some bits of an archive say nothing."""
    path = tmp_path / "state.npz"
    save_state(path, STATE)
    whole, good = path.read_bytes(), load_state(path)
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="damaged"):
            load_state(path)
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(DataError):
            assert same(load_state(path), good), place


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_its_place_is_not_run(tmp_path):
    path, touched = tmp_path / "state.npz", tmp_path / "touched"
    payload = pickle.dumps(Touch(touched))
    path.write_bytes(payload)
    with pytest.raises(DataError):
        load_state(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("json.npy", payload)
    with pytest.raises(DataError):
        load_state(path)
    np.savez(path, json=np.array([Touch(touched)], object))  # NumPy pickles these
    with pytest.raises(DataError, match="allow_pickle"):
        load_state(path)
    assert not touched.exists()


def test_archives_that_unpack_to_more_and_trees_without_end_are_refused(tmp_path):
    path = tmp_path / "state.npz"
    np.savez_compressed(path, json=np.frombuffer(b"{}", np.uint8), bomb=np.zeros(10**7))
    with pytest.raises(DataError, match="compressed"):
        load_state(path)
    for tree in (b"[" * 10**5, b"[]", b"{", b'{"a": {"array": "9"}}', b"NaN"):
        np.savez(path, json=np.frombuffer(tree, np.uint8))
        with pytest.raises(DataError):
            load_state(path)
