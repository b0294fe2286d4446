"""Check boosters before their libraries read these files.

XGBoost and LightGBM are written in C++ and trust their input: a child that is no node of its tree,
or a wrong length, reads foreign memory (a quarter of all flipped bits ended the process). Content
that passes is a forest: every length is that of the following data, every child a node with one
parent, every split on an existing column.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TREES = 1 << 16  # of one booster: ours have some hundred
_NUMBERS = {
    b"i": ">i1",
    b"U": ">u1",
    b"I": ">i2",
    b"l": ">i4",
    b"L": ">i8",
    b"d": ">f4",
    b"D": ">f8",
}
_NODES = (
    "base_weights", "default_left", "left_children", "loss_changes", "parents", "right_children",
    "split_conditions", "split_indices", "split_type", "sum_hessian",
)  # fmt: skip
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_DAMAGED = (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
_HEADER, _TREE, _END = "tree", "Tree=", "end of trees"


def check_xgboost(payload: bytes) -> None:
    """Raise ValueError for content that is not XGBoost's JSON of plain trees."""
    try:
        learner = _read(payload)["learner"]
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
    except _DAMAGED as error:
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
    # XGBoost marks leaves by children of -1.
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
    """Check that every child is a node below the root, used once: no cycles."""
    children = np.concatenate([left, right])
    _need(bool(((children >= 1) & (children < number)).all()), "children")
    # With this and the range above a cycle is impossible, so the library's walk ends.
    _need(len(np.unique(children)) == len(children), "a node with two parents")


def _read(payload: bytes) -> Any:
    """The content of XGBoost's JSON, or of earlier versions' Universal Binary JSON."""
    # UBJSON begins an object with the length of its first key.
    if not payload.startswith(b"{L"):
        return json.loads(payload, object_pairs_hook=_once)
    content, end = _binary(payload, 1, b"{")
    _need(end == len(payload), "more behind its end")
    return content


def _once(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; raises ValueError for a repeated key, which XGBoost may read otherwise."""
    found = dict(items)
    _need(len(found) == len(items), "a key that is there twice")
    return found


def _binary(payload: bytes, place: int, kind: bytes) -> tuple[Any, int]:
    """A value of Universal Binary JSON and the position after it.

    XGBoost writes keys and lengths as 64-bit integers; a list has its length, and may have one type
    of all its items.
    """

    def taken(number: int) -> bytes:
        nonlocal place
        _need(0 <= number <= len(payload) - place, "cut off")
        place += number
        return payload[place - number : place]

    def text() -> str:
        _need(taken(1) == b"L", "a length of another kind")
        return taken(*struct.unpack(">q", taken(8))).decode()

    def nested() -> Any:
        nonlocal place
        value, place = _binary(payload, place + 1, payload[place : place + 1])
        return value

    if kind == b"S":
        return text(), place
    if kind == b"{":
        items = []
        while payload[place : place + 1] != b"}":
            items.append((text(), nested()))
        return _once(items), place + 1
    if kind != b"[":
        _need(kind in _NUMBERS, f"a value of kind {kind!r}")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(taken(dtype.itemsize), dtype).tolist()[0], place
    mark, of = taken(1), b""
    if mark == b"$":
        of, mark = taken(1), taken(1)
    _need(mark == b"#" and taken(1) == b"L", "a list without its length")
    (length,) = struct.unpack(">q", taken(8))
    if of:
        _need(of in _NUMBERS, f"a value of kind {of!r}")
        dtype = np.dtype(_NUMBERS[of])
        return np.frombuffer(taken(length * dtype.itemsize), dtype).tolist(), place
    # Every item takes a byte at least: a larger length would only exhaust memory.
    _need(0 <= length <= len(payload), "cut off")
    return [nested() for _ in range(length)], place


def checked_lightgbm(text: str) -> str:
    """The part of a LightGBM text that scoring needs: checked trees.

    These are trees of plain splits and constant leaves. The training options after them are left
    out: only another training would read them. Raises ValueError for text that LightGBM did not
    write, or that was changed.
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
    except _DAMAGED as error:
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
    # Bit 0 marks a split by categories; bits 1 to 3 treat missing values.
    decision = numbers("decision_type", leaves - 1)
    _need(bool(((decision >= 0) & (decision < 16) & (decision & 1 == 0)).all()), "decision_type")
    left, right = numbers("left_child", leaves - 1), numbers("right_child", leaves - 1)
    # Leaf n is -n - 1 in the file; here it follows the inner nodes, so that all count from the
    # root.
    number = 2 * leaves - 1
    placed = [np.where(side < 0, leaves - 2 - side, side) for side in (left, right)]
    _check_tree(placed[0], placed[1], number)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not as it was written ({what})")
