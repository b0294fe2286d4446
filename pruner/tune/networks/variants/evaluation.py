"""Evaluate graphs at chosen places, with exact or with rounded arithmetic.

A check needs a few elements of the outputs, the borders among them. So every node is evaluated only
at the places that these elements depend on: a box, which is a list of places for each axis. Real
shapes cost milliseconds in this way, and none has to be shrunk.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.variants.graph import (
    ELEMENTWISE,
    AffineIndex,
    Graph,
    GraphNode,
    nodes,
    spec_of,
)

Array = NDArray[Any]
Places = NDArray[np.int64]
Box = tuple[Places, ...]
_At = Callable[[GraphNode, Box], Array]


def evaluate(graph: Graph, boxes: Sequence[Box], arithmetic: Any) -> list[Array]:
    """Evaluate the outputs of a graph at the places of their boxes.

    `arithmetic`: :class:`~pruner.tune.networks.variants.check.Fields`, or another class with its
    methods. Its arrays have an axis of samples in front.
    """
    needed = _needed(graph, boxes)
    values: dict[GraphNode, Array] = {}

    def at(node: GraphNode, box: Box) -> Array:
        array = values[node]
        for axis, (have, wanted) in enumerate(zip(needed[node], box, strict=True)):
            if len(have) != len(wanted):
                array = array.take(np.searchsorted(have, wanted), axis + 1)
        return array

    for node in nodes(graph):
        if node in needed:
            values[node] = _value(node, needed[node], at, arithmetic)
    return [at(node, box) for node, box in zip(graph, boxes, strict=True)]


def whole(graph: Graph) -> list[Box]:
    """Return the boxes of all places."""
    return [tuple(np.arange(extent) for extent in node.shape) for node in graph]


def _needed(graph: Graph, boxes: Sequence[Box]) -> dict[GraphNode, Box]:
    """Compute the places of each node that the outputs depend on."""
    found: dict[GraphNode, Box] = {}

    def add(node: GraphNode, box: Box) -> None:
        old = found.get(node)
        if old is not None:
            box = tuple(np.union1d(*both) for both in zip(old, box, strict=True))
        found[node] = box

    for node, box in zip(graph, boxes, strict=True):
        add(node, box)
    for node in reversed(nodes(graph)):
        if node in found:
            for arg, box in zip(node.args, _arguments(node, found[node]), strict=True):
                add(arg, box)
    return found


def _arguments(node: GraphNode, box: Box) -> list[Box]:
    if node.op == "contract":
        letters = _letters(node, box)
        return [
            tuple(
                _within(_window(axis, letters), n) for axis, n in zip(own, arg.shape, strict=True)
            )
            for own, arg in zip(spec_of(node).args, node.args, strict=True)
        ]
    if node.op in ELEMENTWISE:
        return [_broadcast(arg, box) for arg in node.args]
    if not node.args:
        return []
    data, axes = node.args[0], range(len(node.shape))
    if node.op == "reshape":
        flat = _flat(node.shape, box).reshape(-1)
        return [tuple(map(np.unique, np.unravel_index(flat, data.shape)))]
    if node.op == "permute":
        return [tuple(box[node.attrs.index(axis)] for axis in axes)]
    axis = node.attrs[0]
    if node.op == "cut":
        parts = [box[axis] + node.attrs[1]]
    elif node.op == "concat":
        parts = [_within(box[axis] - at, n) for at, n in _parts(node)]
    else:  # rows
        parts = [np.arange(data.shape[axis])]
    return [tuple(part if i == axis else box[i] for i in axes) for part in parts]


def _value(node: GraphNode, box: Box, at: _At, arithmetic: Any) -> Array:
    if node.op == "leaf":
        return arithmetic.leaf(node, _flat(node.shape, box))
    if node.op == "literal":
        numerators, denominator = node.attrs
        return arithmetic.literal(np.array(numerators)[_flat(node.shape, box)], denominator)
    boxes = _arguments(node, box)
    args = [at(arg, one) for arg, one in zip(node.args, boxes, strict=True)]
    if node.op == "contract":
        return _contracted(node, box, boxes, args, arithmetic)
    if node.op in ELEMENTWISE:
        rank = len(node.shape) + 1
        args = [arg.reshape(len(arg), *(1,) * (rank - arg.ndim), *arg.shape[1:]) for arg in args]
        return arithmetic.apply(node, args)
    if node.op == "permute":
        return args[0].transpose(0, *(axis + 1 for axis in node.attrs))
    if node.op == "cut":
        return args[0]
    if node.op == "reshape":
        # NumPy 2.4.6 unravels more than 8192 places wrongly if their last extent is 1: flat first
        flat = _flat(node.shape, box)
        places = np.unravel_index(flat.reshape(-1), node.args[0].shape)
        inner = tuple(np.searchsorted(h, p) for h, p in zip(boxes[0], places, strict=True))
        taken = np.ravel_multi_index(inner, args[0].shape[1:])
        return args[0].reshape(len(args[0]), -1).take(taken, 1).reshape(-1, *flat.shape)
    axis = node.attrs[0]
    if node.op == "concat":
        return _joined(node, box[axis], boxes, args)
    found = arithmetic.rows(node.op, args[0], axis + 1)
    return found if node.op == "max" else found.take(box[axis], axis + 1)


def _joined(node: GraphNode, places: Places, boxes: Sequence[Box], args: Sequence[Array]) -> Array:
    axis, parts = node.attrs[0], []
    for (begin, extent), own, arg in zip(_parts(node), boxes, args, strict=True):
        inside = places[(places >= begin) & (places < begin + extent)] - begin
        parts.append(arg.take(np.searchsorted(own[axis], inside), axis + 1))
    return np.concatenate(parts, axis + 1)


def _parts(node: GraphNode) -> list[tuple[int, int]]:
    """Return where each part of a joined axis begins, and its extent."""
    extents = [arg.shape[node.attrs[0]] for arg in node.args]
    return [(sum(extents[:i]), extent) for i, extent in enumerate(extents)]


def _within(places: Places, extent: int) -> Places:
    """Return the sorted places inside an extent; the first where there is none."""
    inside = np.unique(places[(places >= 0) & (places < extent)])
    return inside if len(inside) else np.zeros(1, np.int64)


def _flat(shape: Sequence[int], box: Box) -> Places:
    """Return the row-major places of a box, in its shape."""
    flat = np.zeros((1,) * len(shape), np.int64)
    for axis, places in enumerate(box):
        view = [1] * len(shape)
        view[axis] = -1
        flat = flat + places.reshape(view) * prod(shape[axis + 1 :])
    return flat


def _broadcast(arg: GraphNode, box: Box) -> Box:
    skipped, zero = len(box) - len(arg.shape), np.zeros(1, np.int64)
    return tuple(zero if n == 1 else box[skipped + i] for i, n in enumerate(arg.shape))


def _letters(node: GraphNode, box: Box) -> dict[str, Places]:
    letters = {name: np.arange(extent) for name, extent in node.attrs[1]}
    return letters | dict(zip(spec_of(node).out, box, strict=True))


def _window(axis: AffineIndex, letters: Mapping[str, Places]) -> Places:
    """Compute an index for all values of its letters, an axis each."""
    total = np.asarray(axis.offset)
    for factor, name in axis.terms:
        total = total[..., None] + factor * letters[name]
    return total


def _contracted(
    node: GraphNode, box: Box, boxes: Sequence[Box], args: Sequence[Array], arithmetic: Any
) -> Array:
    """Multiply and sum, as a product of matrices."""
    spec, letters = spec_of(node), _letters(node, box)
    sizes = {name: len(places) for name, places in letters.items()}
    arrays, names = [], []
    for number, (indices, have) in enumerate(zip(spec.args, boxes, strict=True)):
        array, own = args[number], list[str]()
        for axis, extent, there in zip(indices, node.args[number].shape, have, strict=True):
            place = len(own) + 1
            if axis.letter is None:
                places = _window(axis, letters)
                valid = (places >= 0) & (places < extent)
                array = array.take(np.searchsorted(there, np.where(valid, places, there[0])), place)
                array = array * valid.reshape(
                    *valid.shape, *(1,) * (array.ndim - place - valid.ndim)
                )
            own.extend(name for _, name in axis.terms)
        arrays.append(array)
        names.append(own)
    if len(arrays) == 1:
        arrays.append(np.ones(arrays[0].shape[:1], arrays[0].dtype))
        names.append([])
    batch = [name for name in names[0] if name in names[1] and name in spec.out]
    left, right = ([n for n in own if n in spec.out and n not in batch] for own in names)
    orders = (batch, left, spec.summed), (batch, spec.summed, right)
    a, b = (
        _matrices(array, own, order, sizes)
        for array, own, order in zip(arrays, names, orders, strict=True)
    )
    result = batch + left + right
    product = arithmetic.matmul(a, b).reshape(len(a), *(sizes[name] for name in result))
    return product.transpose(0, *(1 + result.index(name) for name in spec.out))


def _matrices(
    array: Array, own: list[str], order: Sequence[list[str]], sizes: Mapping[str, int]
) -> Array:
    """Return an array with three groups of letters as its axes."""
    names = [name for group in order for name in group]
    missing = [name for name in names if name not in own]  # summed in the other argument only
    array = array.reshape(array.shape + (1,) * len(missing))
    moved = array.transpose(0, *(1 + (own + missing).index(name) for name in names))
    shape = [sizes[name] for name in names]
    groups = [prod(sizes[name] for name in group) for group in order]
    return np.broadcast_to(moved, (len(array), *shape)).reshape(len(array), *groups)
