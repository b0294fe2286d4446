"""Operators that move elements, such as pads and one-hot, and images of another size.

TVM's converters emit TIR functions for paddings and tilings, through which no layout passes. Its
scatter takes the places of new elements from the sizes of the indices, not of the tensor.

Images are resampled along each dimension by a product with constant weights. TVM computes with the
ratio of the sizes; ONNX computes with the scale that is given, which differs where the scaled size
is no whole number: 5 pixels at scale 1.5 are 7, not 7.5. TVM ignores the dimensions and the policy
of newer versions of the operator, too. It keeps what it converts rightly.
"""

import importlib
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pruner.arrays import Floats
from pruner.tune.networks.rewrites.operators import array, constant, dtype_of, is_float, shape_of
from pruner.tune.tvm_import import load_tvm

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}
_POLICIES = {b"not_larger": min, b"not_smaller": max}


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


def resize(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Resize of version 11 or newer; older files are converted before."""
    data, roi, scales, sizes = (inputs[i] for i in range(4))
    mode = attrs.get("coordinate_transformation_mode", b"half_pixel")
    roi = roi if mode == b"tf_crop_and_resize" else None
    shape = shape_of(data)
    axes = [axis % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    factors, new = [1.0] * len(shape), list(shape)
    given = None if sizes is None else array(sizes, "its sizes")
    if given is None or not given.size:
        for axis, scale in zip(axes, array(scales, "its scales"), strict=True):
            # in float32, as shape inference computes: 10 pixels at scale 0.7 are 7
            factors[axis], new[axis] = float(scale), int(scale * np.float32(shape[axis]))
    else:
        ratios = [size / shape[axis] for axis, size in zip(axes, given, strict=True)]
        policy = _POLICIES.get(attrs.get("keep_aspect_ratio_policy", b"stretch"))
        for axis, size, ratio in zip(axes, given, ratios, strict=True):
            factors[axis] = policy(ratios) if policy else ratio
            # halves are rounded up
            new[axis] = int(np.floor(factors[axis] * shape[axis] + 0.5)) if policy else int(size)
    whole = all(n == old * f for n, old, f in zip(new, shape, factors, strict=True))
    exact = whole or (given is not None and given.size and not policy)
    if mode == b"align_corners" and 1 in new[2:]:
        exact = mode = False  # TVM divides by zero
    plain = not attrs.get("antialias") and mode != b"half_pixel_symmetric" and new[:2] == shape[:2]
    plain = plain and len(shape) > 2
    plain = plain and (exact or mode in (b"align_corners", b"tf_crop_and_resize"))
    if not is_float(data) and not (plain and attrs.get("mode", b"nearest") == b"nearest"):
        return _whole(front, inputs, attrs)
    if plain:
        known = {k: v for k, v in attrs.items() if k not in ("axes", "keep_aspect_ratio_policy")}
        if roi is not None and "axes" in attrs:
            ends = array(roi, "its region").reshape(2, len(axes))
            region = np.array([[0.0] * len(shape), [1.0] * len(shape)])
            region[:, axes] = ends
            roi = constant(region.reshape(-1), dtype_of(roi))
        return front.convert("Resize", [data, roi, None, constant(new, "int64")], known)
    if attrs.get("antialias") or mode == b"tf_crop_and_resize":
        kind = "antialias" if attrs.get("antialias") else mode.decode()
        raise ValueError(f"its {kind} with sizes {shape} and {new}")
    for axis, (old, size, factor) in enumerate(zip(shape, new, factors, strict=True)):
        if (old, factor) != (size, 1.0):
            data = _resampled(front, data, axis, weights(old, size, factor, attrs))
    return data


def _whole(front: Any, inputs: Any, attrs: Any) -> Any:
    """Resize whole numbers in float32; onnxruntime cuts linear results off, ONNX rounds."""
    op, kind = load_tvm().relax.op, dtype_of(inputs[0])
    wide = front.bb.normalize(op.astype(inputs[0], "float32"))
    found, limits = resize(front, type(inputs)([wide, *inputs[1:4]]), attrs), np.iinfo(kind)
    end = op.trunc if attrs.get("mode") == b"linear" else op.round
    return op.astype(op.clip(end(found), int(limits.min), int(limits.max)), kind)


def weights(old: int, new: int, scale: float, attrs: Any) -> Floats:
    """Compute what each new element takes of each old element: float64 [new, old]."""
    places = _places(old, new, scale, attrs.get("coordinate_transformation_mode", b"half_pixel"))
    mode, whole = attrs.get("mode", b"nearest"), np.floor(places)
    found = np.zeros((new, old))
    if mode == b"nearest":
        taken = _ROUNDINGS[attrs.get("nearest_mode", b"round_prefer_floor")](places)
        found[np.arange(new), np.clip(taken, 0, old - 1).astype(int)] = 1
        return found
    part = places - whole
    if mode == b"linear":
        taps = {0: 1 - part, 1: part}
    else:
        taps = {
            i: _cubic(np.abs(part - i), attrs.get("cubic_coeff_a", -0.75)) for i in range(-1, 3)
        }
    for offset, share in taps.items():
        index = whole.astype(int) + offset
        inside = (index >= 0) & (index < old)
        kept = share * inside if attrs.get("exclude_outside") else share
        np.add.at(found, (np.arange(new), np.clip(index, 0, old - 1)), kept)
    if attrs.get("exclude_outside"):
        found /= found.sum(1, keepdims=True)
    return found


def _places(old: int, new: int, scale: float, mode: bytes) -> Floats:
    index = np.arange(new, dtype=np.float64)
    if mode == b"asymmetric":
        return index / scale
    if mode == b"align_corners":
        return index * ((old - 1) / (new - 1)) if new > 1 else index
    if mode == b"pytorch_half_pixel" and new == 1:
        return index * 0
    if mode == b"tf_half_pixel_for_nn":
        return (index + 0.5) / scale
    centred = (index + 0.5) / scale - 0.5
    if mode == b"half_pixel_symmetric":
        centred += old / 2 * (1 - new / (scale * old))
    return centred


def _cubic(distance: Floats, a: float) -> Floats:
    """Weigh by Keys' kernel (1981); ``a`` is its slope at distance 1."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.select([distance <= 1, distance < 2], [near, far], 0.0)


_ROUNDINGS: dict[bytes, Callable[[Floats], Floats]] = {
    b"ceil": np.ceil,
    b"floor": np.floor,
    b"round_prefer_ceil": lambda x: np.floor(x + 0.5),
    b"round_prefer_floor": lambda x: np.ceil(x - 0.5),
}


def _resampled(front: Any, data: Any, axis: int, matrix: Floats) -> Any:
    op, last = load_tvm().relax.op, len(shape_of(data)) - 1
    order = [i for i in range(last + 1) if i != axis] + [axis]
    moved = data if axis == last else op.permute_dims(data, order)
    product = op.matmul(moved, constant(matrix.T, dtype_of(data)))
    if axis != last:
        product = op.permute_dims(product, [order.index(i) for i in range(last + 1)])
    return front.bb.normalize(product)


CONVERTERS: dict[str, Any] = {
    "CumSum": cumulative_sum,
    "EyeLike": eye,
    # TVM's own has as many boxes as could be
    "NonMaxSuppression": partial(_refused, "the number of boxes depends on values of the input"),
    "OneHot": one_hot,
    "Pad": pad,
    "Resize": resize,
    "RoiAlign": roi_align,
    "ScatterElements": scatter_elements,
    "Tile": lambda _, inputs, attrs: load_tvm().relax.op.tile(
        inputs[0], array(inputs[1], "repeats").tolist()
    ),
    "TopK": top_k,
}
