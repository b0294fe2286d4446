"""Boosters as data: looked at before their libraries read them.

XGBoost and LightGBM are written in C++ and believe what they read: a child that is no node of its
tree, or a length that is not there, is memory of somebody else (a quarter of all flipped bits ended
the process). What passes here is a forest: every length is that of what follows, every child a node
with one parent, every split on a column that there is.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TREES = 1 << 16
"""Of one booster: ours have some hundred."""
_NUMBERS = {
    b"i": ">i1",
    b"U": ">u1",
    b"I": ">i2",
    b"l": ">i4",
    b"L": ">i8",
    b"d": ">f4",
    b"D": ">f8",
}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}
_NODES = (
    "base_weights", "default_left", "left_children", "loss_changes", "parents", "right_children",
    "split_conditions", "split_indices", "split_type", "sum_hessian",
)  # fmt: skip
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_HEADER, _TREE, _END = "tree", "Tree=", "end of trees"


def check_xgboost(payload: bytes) -> None:
    """Raise ValueError for what XGBoost did not write, or not as it was written: Universal Binary
    JSON with trees of one value a leaf, without categories."""
    try:
        learner = _Binary(payload).whole()["learner"]
        booster, sizes = learner["gradient_booster"], learner["learner_model_param"]
        _need(booster["name"] == "gbtree", "its booster is no gbtree")
        model, columns = booster["model"], int(sizes["num_feature"])
        _need(int(sizes["num_class"]) == 0, "classes")
        _need(int(sizes.get("num_target", 1)) == 1, "targets")
        for values in model.get("cats", {}).values():
            _need(len(values) == 0, "categories")
        trees, number = model["trees"], int(model["gbtree_model_param"]["num_trees"])
        _need(len(trees) == number <= MAX_TREES, "trees")
        _need(int(model["gbtree_model_param"].get("num_parallel_tree", 1)) == 1, "parallel trees")
        _need(list(model["tree_info"]) == [0] * number, "tree_info")
        rounds = model.get("iteration_indptr", range(number + 1))
        _need(list(rounds) == list(range(number + 1)), "iteration_indptr")
        for place, tree in enumerate(trees):
            _need(int(tree["id"]) == place, "order of trees")
            _check_nodes(tree, columns)
    except (
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"no booster of XGBoost ({type(error).__name__}: {error})") from error


def _check_nodes(tree: Mapping[str, Any], columns: int) -> None:
    about = tree["tree_param"]
    number = int(about["num_nodes"])
    _need(int(about.get("size_leaf_vector", 1)) in (0, 1), "leaves of several values")
    _need(int(about["num_feature"]) == columns, "num_feature")
    _need(0 <= int(about.get("num_deleted", 0)) < number, "num_deleted")
    for name in _CATEGORIES:
        _need(len(tree.get(name, ())) == 0, name)
    nodes = {name: np.asarray(tree[name]) for name in _NODES}
    for name, values in nodes.items():
        _need(values.shape == (number,), f"{name} of another length")
    _need(not nodes["split_type"].any(), "split_type")
    left, right = nodes["left_children"], nodes["right_children"]
    for name in ("left_children", "right_children", "parents", "split_indices"):
        _need(nodes[name].dtype.kind == "i", f"{name} of another kind")
    inner = left != -1
    _need(bool(((right != -1) == inner).all()), "a node with one child")
    split = nodes["split_indices"][inner]
    _need(bool(((split >= 0) & (split < columns)).all()), "split_indices")
    _check_tree(left[inner], right[inner], number)
    parents = nodes["parents"]
    place = np.flatnonzero(inner)
    _need(bool((parents[left[inner]] == place).all()), "parents")
    _need(bool((parents[right[inner]] == place).all()), "parents")


def _check_tree(left: NDArray[Any], right: NDArray[Any], number: int) -> None:
    """Every child is a node beside the root, and the child of one: then no way leads back."""
    children = np.concatenate([left, right])
    _need(bool(((children >= 1) & (children < number)).all()), "children")
    _need(len(np.unique(children)) == len(children), "a node with two parents")


class _Binary:
    """Universal Binary JSON as XGBoost writes it: keys and lengths are 64-bit integers, lists tell
    their length and may tell one type of all their items."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._place = payload, 0

    def whole(self) -> Any:
        found = self._value(self._take(1))
        _need(self._place == len(self._payload), "more behind its end")
        return found

    def _take(self, number: int) -> bytes:
        end = self._place + number
        _need(number >= 0 and end <= len(self._payload), "cut off")
        taken, self._place = self._payload[self._place : end], end
        return taken

    def _length(self) -> int:
        _need(self._take(1) == b"L", "a length of another kind")
        (length,) = struct.unpack(">q", self._take(8))
        return int(length)

    def _text(self) -> str:
        return self._take(self._length()).decode()

    def _value(self, kind: bytes) -> Any:
        if kind == b"{":
            return self._mapping()
        if kind == b"[":
            return self._list()
        if kind == b"S":
            return self._text()
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        return self._numbers(kind, 1)[0]

    def _mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._payload[self._place : self._place + 1] != b"}":
            name = self._text()
            _need(name not in found, "a key that is there twice")
            found[name] = self._value(self._take(1))
        self._take(1)
        return found

    def _list(self) -> Sequence[Any]:
        mark, kind = self._take(1), b""
        if mark == b"$":
            kind, mark = self._take(1), self._take(1)
        _need(mark == b"#", "a list without its length")
        length = self._length()
        if kind:
            return list(self._numbers(kind, length).tolist())
        _need(0 <= length <= len(self._payload), "cut off")
        return [self._value(self._take(1)) for _ in range(length)]

    def _numbers(self, kind: bytes, length: int) -> NDArray[Any]:
        _need(kind in _NUMBERS, f"a value of kind {kind!r}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(length * dtype.itemsize), dtype)


def checked_lightgbm(text: str) -> str:
    """What LightGBM scores with of a text that it wrote: trees of plain splits and constant leaves.

    The options of the training behind them are left out: only another training would read them.
    Raises ValueError for what LightGBM did not write, or not as it was written.
    """
    try:
        forest = text[: text.index(f"\n{_END}\n")]
        head, *blocks = forest.split(f"\n{_TREE}")
        about = _lines(head)
        _need(head.startswith(f"{_HEADER}\n"), "no text of LightGBM")
        _need(about["num_class"] == about["num_tree_per_iteration"] == "1", "classes")
        columns = int(about["max_feature_idx"]) + 1
        for name in ("feature_names", "feature_infos"):
            _need(len(about[name].split(" ")) == columns, name)
        _need(len(blocks) <= MAX_TREES, "trees")
        sizes = [len(f"{_TREE}{block}\n") for block in blocks]
        _need(about.get("tree_sizes", "").split() == [str(size) for size in sizes], "tree_sizes")
        for place, block in enumerate(blocks):
            number, _, lines = block.partition("\n")
            _need(number == str(place), "order of trees")
            _check_leaves(_lines(lines), columns)
        return f"{forest}\n{_END}\n"
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"no booster of LightGBM ({type(error).__name__}: {error})") from error


def _lines(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, _, value = line.partition("=")
        _need(name not in found or not name, "a line that is there twice")
        found[name] = value
    return found


def _check_leaves(tree: Mapping[str, str], columns: int) -> None:
    leaves = int(tree["num_leaves"])
    _need(1 <= leaves <= 1 << 20, "num_leaves")
    _need(tree["num_cat"] == tree.get("is_linear", "0") == "0", "categories, or linear leaves")

    def numbers(name: str, length: int, kind: type = int) -> NDArray[Any]:
        values = np.array([kind(word) for word in tree.get(name, "").split()])
        _need(len(values) == length, f"{name} of another length")
        return values

    numbers("leaf_value", leaves, float)
    if leaves == 1:
        return
    for name in ("threshold", "split_gain", "internal_value", "internal_weight"):
        numbers(name, leaves - 1, float)
    numbers("internal_count", leaves - 1)
    for name in ("leaf_weight", "leaf_count"):
        numbers(name, leaves, float)
    split = numbers("split_feature", leaves - 1)
    _need(bool(((split >= 0) & (split < columns)).all()), "split_feature")
    decision = numbers("decision_type", leaves - 1)
    _need(bool(((decision >= 0) & (decision < 16) & (decision & 1 == 0)).all()), "decision_type")
    left, right = numbers("left_child", leaves - 1), numbers("right_child", leaves - 1)
    # leaf n is -n - 1: behind the inner nodes, so that all are numbered from the root
    number = 2 * leaves - 1
    placed = [np.where(side < 0, leaves - 2 - side, side) for side in (left, right)]
    _check_tree(placed[0], placed[1], number)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not as it was written ({what})")
