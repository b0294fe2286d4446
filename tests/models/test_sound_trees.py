"""Boosters of damaged and hostile checkpoints: refused, or read; no library crashes over one."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pruner.models.trees import validation
from pruner.models.trees.validation import _check_tree, check_xgboost, checked_lightgbm
from tests.commands import python

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
COLUMNS = 6


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return rng.random((200, COLUMNS)), rng.random(200)


@pytest.fixture(scope="module")
def theirs(table):
    settings = {"max_depth": 4, "nthread": 1, "tree_method": "hist", "gamma": 0.01}
    return xgboost.train(settings, xgboost.DMatrix(table[0], label=table[1]), 5)


@pytest.fixture(scope="module")
def text(table):
    settings = {"verbose": -1, "num_threads": 1, "num_leaves": 7}
    return lightgbm.train(settings, lightgbm.Dataset(*table), 5).model_to_string()


def test_binary_json_says_what_xgboost_says_in_text(theirs):
    told = json.loads(theirs.save_raw("json"))
    found = validation._read(bytes(theirs.save_raw("ubj")))

    def same(one, other):
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
        if isinstance(one, list):
            return len(one) == len(other) and all(map(same, one, other))
        if isinstance(one, float) or isinstance(other, float):
            return np.float32(one) == np.float32(other)
        return one == other

    assert same(told, found)
    assert len(found["learner"]["gradient_booster"]["model"]["trees"]) == 5


def flipped(payload, seed, number):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        damaged = bytearray(payload)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        yield bytes(damaged)


def test_what_is_left_of_a_text_scores_alike(text, table):
    whole, rest = (lightgbm.Booster(model_str=one) for one in (text, checked_lightgbm(text)))
    assert "parameters" not in checked_lightgbm(text)
    assert np.array_equal(whole.predict(table[0]), rest.predict(table[0]))
    assert checked_lightgbm(rest.model_to_string()) == checked_lightgbm(text)


def test_a_flipped_bit_is_an_error_or_data(theirs, text):
    for form in ("json", "ubj"):
        for damaged in flipped(bytes(theirs.save_raw(form)), 0, 30):
            with suppress(ValueError):
                check_xgboost(damaged)
    for damaged in flipped(text.encode(), 0, 30):
        with suppress(ValueError):
            checked_lightgbm(damaged.decode())


def read_all(kind, path):
    """In a process of its own: check, read and score with damaged boosters of one kind."""
    table, refused = np.random.default_rng(0).random((50, COLUMNS)), 0
    for damaged in flipped(Path(path).read_bytes(), 1, 150):
        try:
            if kind != "text":
                check_xgboost(damaged)
                booster = xgboost.Booster()
                booster.load_model(bytearray(damaged))
                booster.predict(xgboost.DMatrix(table))
            else:
                booster = lightgbm.Booster(model_str=checked_lightgbm(damaged.decode()))
                booster.predict(table, raw_score=True)
        except (ValueError, xgboost.core.XGBoostError, lightgbm.basic.LightGBMError):
            refused += 1
    sys.stdout.write(f"{refused}\n")


@pytest.mark.parametrize("kind", ["json", pytest.param("ubj", marks=pytest.mark.slow), "text"])
def test_what_passes_ends_no_process(theirs, text, tmp_path, kind):
    """Without the checks 15 of 60 flipped bits did of XGBoost, and 15 of 60 of LightGBM."""
    payload = text.encode() if kind == "text" else bytes(theirs.save_raw(kind))
    (tmp_path / "booster").write_bytes(payload)
    words = (
        "from tests.models.test_sound_trees import read_all; "
        f"read_all({kind!r}, {str(tmp_path / 'booster')!r})"
    )
    done = python("-c", words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert 15 < int(done.stdout.split()[-1]) < 150


DAMAGE = {
    "a child that is no node": ("left_children", 0, 99),
    "a way back": ("left_children", 1, 1),
    "the root as a child": ("right_children", 0, 0),
    "a column that is not there": ("split_indices", 0, COLUMNS),
    "a category": ("split_type", 0, 1),
    "another parent": ("parents", 1, 2),
}


@pytest.mark.parametrize(("name", "place", "value"), DAMAGE.values(), ids=DAMAGE)
def test_a_tree_that_leads_elsewhere_is_refused(theirs, name, place, value):
    whole = json.loads(theirs.save_raw("json"))
    check_xgboost(json.dumps(whole).encode())
    tree = whole["learner"]["gradient_booster"]["model"]["trees"][2]
    tree[name][place] = value
    with pytest.raises(ValueError, match="not as it was written"):
        check_xgboost(json.dumps(whole).encode())


def test_a_key_that_is_there_twice_is_refused(theirs):
    whole = theirs.save_raw("json").decode()
    with pytest.raises(ValueError, match="twice"):
        check_xgboost(whole.replace('"trees":', '"trees":[],"trees":').encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("left_child=", "left_child=77 "), ("num_cat=0", "num_cat=1"),
        ("num_leaves=7", "num_leaves=8"), ("num_leaves=7", "num_leaves=1000000000"),
        ("split_feature=", "split_feature=9"), ("is_linear=0", "is_linear=1"),
        ("Tree=1\n", "Tree=7\n"), ("max_feature_idx=5", "max_feature_idx=1"),
        ("num_class=1", "num_class=5"), ("end of trees", "end"),
    ],
)  # fmt: skip
def test_a_text_that_leads_elsewhere_is_refused(text, old, new):
    checked_lightgbm(text)
    assert old in text
    with pytest.raises(ValueError, match=r"not|found|no booster"):
        checked_lightgbm(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("left", "right", "number"),
    [([1, 1], [2, 3], 5), ([1, 0], [2, 3], 5), ([1, 5], [2, 3], 5), ([1, 3], [1, 4], 5)],
    ids=["two parents", "the root", "beyond", "both sides"],
)
def test_children_that_make_no_tree(left, right, number):
    _check_tree(np.array([1, 3]), np.array([2, 4]), 5)
    with pytest.raises(ValueError, match="not as it was written"):
        _check_tree(np.array(left), np.array(right), number)
