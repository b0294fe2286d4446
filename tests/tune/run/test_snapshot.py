"""State on disk: what is shared stays shared, what is built anew is not written."""

import numpy as np
import pytest

from pruner.errors import DataError
from pruner.tune.run.snapshot import Snapshots


class Space:
    """Cannot be pickled, as TVM's own objects."""

    def __reduce__(self):
        raise TypeError("no pickle")


def test_a_state_comes_back_with_the_new_runs_own_objects(tmp_path):
    old, new, rng = Space(), Space(), np.random.default_rng(3)
    state = {"searches": [{"space": old, "rng": rng}, {"space": old, "rng": rng}], "round": 2}
    Snapshots(tmp_path / "state.pkl", {"space of t": old}).save(state)
    expected = rng.random(4)
    loaded = Snapshots(tmp_path / "state.pkl", {"space of t": new}).load()
    first, second = loaded["searches"]
    assert first["space"] is second["space"] is new
    assert first["rng"] is second["rng"]  # one generator for both, as before
    np.testing.assert_array_equal(first["rng"].random(4), expected)
    assert loaded["round"] == 2


def test_nothing_is_loaded_where_nothing_was_saved(tmp_path):
    assert Snapshots(tmp_path / "state.pkl", {}).load() is None


def test_a_save_that_fails_leaves_the_state_before(tmp_path):
    snapshots = Snapshots(tmp_path / "state.pkl", {})
    snapshots.save({"round": 1})
    with pytest.raises(TypeError, match="no pickle"):
        snapshots.save({"round": 2, "space": Space()})
    assert snapshots.load() == {"round": 1}


def test_another_runs_state_is_refused_by_the_name_it_lacks(tmp_path):
    space = Space()
    Snapshots(tmp_path / "state.pkl", {"space of t": space}).save({"space": space})
    with pytest.raises(DataError, match="space of t"):
        Snapshots(tmp_path / "state.pkl", {"space of u": Space()}).load()
