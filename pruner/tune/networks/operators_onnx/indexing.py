"""Padding, tiling, one-hot, cumulative sums, and other operators that move elements.

TVM's converters emit TIR functions for paddings and tilings, through which no layout passes. Its
scatter takes the places of new elements from the sizes of the indices, not of the tensor.
"""

import importlib
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pruner.tune.networks.operators_onnx.tensors import array, constant, dtype_of, shape_of
from pruner.tune.tvm_import import load_tvm

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def pad(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Pad; negative pads cut elements off."""
    op, data = load_tvm().relax.op, inputs[0]
    rank, mode = len(shape_of(data)), attrs.get("mode", b"constant").decode()
    pads = attrs["pads"] if "pads" in attrs else array(inputs[1], "pads").tolist()
    value = attrs.get("value", 0.0)
    if inputs[2] is not None:
        value = array(inputs[2], "the value of the padding").item()
    axes = range(rank) if inputs[3] is None else array(inputs[3], "axes").tolist()
    begin, end = [0] * rank, [0] * rank
    for axis, before, after in zip(
        axes, pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True
    ):
        begin[axis], end[axis] = int(before), int(after)
    cut = [axis for axis in range(rank) if min(begin[axis], end[axis]) < 0]
    if cut:
        starts = [max(-begin[axis], 0) for axis in cut]
        ends = [shape_of(data)[axis] - max(-end[axis], 0) for axis in cut]
        data = front.bb.normalize(op.strided_slice(data, cut, starts, ends))
    width = [max(size, 0) for pair in zip(begin, end, strict=True) for size in pair]
    if not any(width):
        return data
    if dtype_of(data) == "bool":
        padded = op.nn.pad(op.astype(data, "int8"), width, _MODES[mode], float(value))
        return op.astype(padded, "bool")
    return op.nn.pad(data, width, _MODES[mode], float(value))


def tile(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Tile with constant repeats."""
    return load_tvm().relax.op.tile(inputs[0], array(inputs[1], "repeats").tolist())


def cumulative_sum(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert CumSum, in either direction."""
    op, data = load_tvm().relax.op, inputs[0]
    axis = int(array(inputs[1], "its axis").item()) % len(shape_of(data))
    backwards = bool(attrs.get("reverse", 0))
    data = op.flip(data, axis) if backwards else data
    total = op.cumsum(data, axis, exclusive=bool(attrs.get("exclusive", 0)))
    return op.flip(total, axis) if backwards else total


def one_hot(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert OneHot by comparison; an index outside has no hot element."""
    op, indices = load_tvm().relax.op, inputs[0]
    depth = int(array(inputs[1], "the depth").item())
    rank, kind = len(shape_of(indices)) + 1, dtype_of(indices)
    axis = attrs.get("axis", -1) % rank
    if "uint" not in kind:
        below = op.less(indices, constant(0, kind))
        indices = op.where(below, op.add(indices, constant(depth, kind)), indices)
    places = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(rank)])
    hot = op.equal(op.expand_dims(indices, axis), constant(places, kind))
    off, on = (op.strided_slice(inputs[2], [0], [i], [i + 1]) for i in range(2))
    return op.where(hot, on, off)


def eye(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert EyeLike, which depends on the shape alone."""
    rows, columns = shape_of(inputs[0])
    helper = importlib.import_module("onnx.helper")
    kind = attrs.get("dtype")
    dtype = dtype_of(inputs[0])
    if kind is not None:
        dtype = str(helper.tensor_dtype_to_np_dtype(kind))
    return constant(np.eye(rows, columns, attrs.get("k", 0)), dtype)


def top_k(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert TopK without an order by TopK, whose order is as good as any."""
    if attrs.get("sorted", 1):
        return None
    return front.convert("TopK", inputs, {**attrs, "sorted": 1})


def scatter_elements(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert ScatterElements whose indices cover a part of the tensor's other dimensions."""
    op, (data, index, new) = load_tvm().relax.op, inputs[:3]
    sizes, shape, kind = shape_of(data), shape_of(index), dtype_of(index)
    axis = attrs.get("axis", 0) % len(sizes)
    if all(shape[dim] == size for dim, size in enumerate(sizes) if dim != axis):
        return None
    places = [constant(one.reshape(-1, 1), kind) for one in np.indices(shape)]
    below = op.less(index, constant(0, kind))
    index = op.where(below, op.add(index, constant(sizes[axis], kind)), index)
    places[axis] = front.bb.emit(op.reshape(index, [prod(shape), 1]))
    how = attrs.get("reduction", b"none").decode()
    return op.scatter_nd(
        data,
        front.bb.emit(op.concat(places, 1)),
        front.bb.emit(op.reshape(new, [prod(shape)])),
        "update" if how == "none" else how,
    )


def _refused(reason: str, front: Any, inputs: Any, attrs: Any) -> Any:
    raise ValueError(reason)


def roi_align(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert RoiAlign of means; TVM shifts boxes before it scales them."""
    if attrs.get("mode", b"avg") == b"max":
        raise ValueError("its maximum (mode) is not that of ONNX; use the mean")
    scale = constant(attrs.get("spatial_scale", 1.0), dtype_of(inputs[1]))
    boxes = front.bb.emit(load_tvm().relax.op.multiply(inputs[1], scale))
    return front.convert("RoiAlign", [inputs[0], boxes, inputs[2]], {**attrs, "spatial_scale": 1.0})


CONVERTERS: dict[str, Any] = {
    "CumSum": cumulative_sum,
    "EyeLike": eye,
    # TVM's own has as many boxes as could be
    "NonMaxSuppression": partial(_refused, "the number of boxes depends on values of the input"),
    "OneHot": one_hot,
    "Pad": pad,
    "RoiAlign": roi_align,
    "ScatterElements": scatter_elements,
    "Tile": tile,
    "TopK": top_k,
}
