"""Windows whose padding follows from their sizes, and places of maxima.

TVM may have a window too few for such a padding of a pool. For a convolution it emits a TIR
function, through which no layout passes. Its norms of incomplete windows are too large, and it has
no places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.operators_onnx.products import padded
from pruner.tune.networks.operators_onnx.recurrent import Emitter
from pruner.tune.networks.operators_onnx.tensors import (
    array,
    constant,
    dtype_of,
    is_float,
    shape_of,
)
from pruner.tune.tvm_import import load_tvm


def _pool(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert a pool with ``auto_pad`` or places, and norms with ``ceil_mode``."""
    if any(pad < 0 for pad in attrs.get("pads", [])):
        raise ValueError("its pads are negative")
    fixed = _with_pads(shape_of(inputs[0])[2:], attrs)
    if name == "MaxPool" and attrs["tvm_custom"]["num_outputs"] == 2:
        return _with_places(front, inputs[0], fixed)
    if name == "LpPool" and fixed.get("ceil_mode"):
        # TVM divides by the elements of a window and multiplies by the size of the kernel
        before, _, behind = _windows(shape_of(inputs[0])[2:], fixed)
        fixed = {**fixed, "ceil_mode": 0, "pads": [*before, *behind]}
    return None if fixed is attrs else front.convert(name, inputs, fixed)


def convolution(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Conv with ``auto_pad``."""
    data, weight = (shape_of(one)[2:] for one in inputs[:2])
    given = {"kernel_shape": weight, **attrs}
    fixed = _with_pads(data, given)
    return None if fixed is given else front.convert("Conv", inputs, fixed)


def unpool(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert MaxUnpool; TVM reads its pads in pairs, and no size of the result.

    The places are those of the smallest size, which is padded to the size that is given.
    """
    dims = len(attrs["kernel_shape"])
    pads = attrs.get("pads", [0] * (2 * dims))
    pairs = [pad for pair in zip(pads[:dims], pads[dims:], strict=True) for pad in pair]
    result = front.convert("MaxUnpool", inputs[:2], {**attrs, "pads": pairs})
    if inputs[2] is None:
        return result
    wanted = array(inputs[2], "the size of its result").tolist()
    behind = [new - old for new, old in zip(wanted, shape_of(result), strict=True)]
    if min(behind) < 0:
        raise ValueError(f"its result of {shape_of(result)} is cut to {wanted} (output_shape)")
    return load_tvm().relax.op.nn.pad(result, [n for after in behind for n in (0, after)])


def _with_pads(sizes: list[int], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``auto_pad`` by pads for a window at every step of the stride."""
    if attrs.get("auto_pad", b"NOTSET") not in (b"SAME_UPPER", b"SAME_LOWER"):
        return attrs
    kernel = attrs["kernel_shape"]
    ones = [1] * len(kernel)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    totals = [
        (-(-n // s) - 1) * s + (k - 1) * d + 1 - n
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    return padded(attrs, "ceil_mode", totals)


def _windows(sizes: list[int], attrs: Mapping[str, Any]) -> tuple[Sequence[int], ...]:
    """Return pads before, numbers of the last windows, and pads behind that complete them."""
    dims, kernel = len(sizes), attrs["kernel_shape"]
    strides, gaps = attrs.get("strides", [1] * dims), attrs.get("dilations", [1] * dims)
    pads = attrs.get("pads", [0] * (2 * dims))
    steps, behind = [], []
    for n, k, s, d, before, after in zip(
        sizes, kernel, strides, gaps, pads[:dims], pads[dims:], strict=True
    ):
        reach = (k - 1) * d + 1
        room = n + before + after - reach
        last = -(-room // s) if attrs.get("ceil_mode") else room // s
        last -= last * s >= n + before  # such a window begins behind the tensor
        steps.append(last)
        behind.append(max(last * s + reach - n - before, 0))
    return pads[:dims], steps, behind


def _with_places(front: Any, data: Any, attrs: Mapping[str, Any]) -> Any:
    """Compute maxima and their places in the flattened tensor.

    The elements of a window are compared one after the other, so the first of equals wins; of
    NaNs, which win over numbers, the last wins, as in torch. A pad never wins over an element,
    also not over the smallest number of its type. The place of the element k of a window is that
    of its first element and a number that depends on k alone.
    """
    op, kernel = Emitter(front), attrs["kernel_shape"]
    outer, sizes, dims = shape_of(data)[:2], shape_of(data)[2:], len(kernel)
    ones = [1] * dims
    strides, gaps = attrs.get("strides", ones), attrs.get("dilations", ones)
    before, steps, behind = _windows(sizes, attrs)
    kind, axes = dtype_of(data), [2 + dim for dim in range(dims)]
    low = np.finfo(kind).min if is_float(data) else np.iinfo(kind).min
    width = [0, 0, 0, 0, *(n for pair in zip(before, behind, strict=True) for n in pair)]
    image = front.bb.emit(load_tvm().relax.op.nn.pad(data, width, "constant", float(low)))
    # how far apart neighbours are in the flattened tensor, along each dimension
    order = range(dims) if attrs.get("storage_order") else reversed(range(dims))
    apart, far = dict[int, int](), 1
    for dim in order:
        apart[dim], far = far, far * sizes[dim]
    best = place = None
    has_any = np.zeros([1, 1, *(n + 1 for n in steps)], bool)  # whether a window had an element
    for offsets in product(*map(range, kernel)):
        begin = [o * d for o, d in zip(offsets, gaps, strict=True)]
        end = [b + n * s + 1 for b, n, s in zip(begin, steps, strides, strict=True)]
        valid = _elements(begin, strides, steps, before, sizes)
        value = op.strided_slice(image, axes, begin, end, list(strides))
        there = constant(sum(apart[dim] * begin[dim] for dim in range(dims)), "int64")
        if best is None:
            best, place = value, there  # of all windows
        else:
            wins = op.greater(value, best)
            if is_float(data):
                wins = op.logical_or(wins, op.isnan(value))
            if not valid.all():
                wins = op.logical_and(wins, constant(valid, "bool"))
            if (valid & ~has_any).any():
                wins = op.logical_or(wins, constant(valid & ~has_any, "bool"))
            best, place = op.where(wins, value, best), op.where(wins, there, place)
        has_any |= valid
    first = np.arange(prod(outer)).reshape([*outer, *ones]) * prod(sizes)
    place = op.add(place, constant(first, "int64"))
    for dim, (n, s, pad) in enumerate(zip(steps, strides, before, strict=True)):
        along = [-1 if other == dim else 1 for other in range(dims)]
        starts = ((np.arange(n + 1) * s - pad) * apart[dim]).reshape([1, 1, *along])
        place = op.add(place, constant(starts, "int64"))
    return load_tvm().relax.Tuple([best, place])


def _elements(
    begin: Sequence[int],
    strides: Sequence[int],
    steps: Sequence[int],
    before: Sequence[int],
    sizes: Sequence[int],
) -> NDArray[np.bool]:
    """Return which windows have an element, not a pad, at a place.

    ``begin``: the place in a window. The result is [1, 1, windows along each dimension].
    """
    along = []
    for first, stride, last, pad, size in zip(begin, strides, steps, before, sizes, strict=True):
        at = np.arange(last + 1) * stride + first - pad
        along.append((at >= 0) & (at < size))
    return np.asarray(reduce(np.logical_and.outer, along)[None, None])


CONVERTERS: dict[str, Any] = {
    **{name: partial(_pool, name) for name in ("AveragePool", "LpPool", "MaxPool")},
    "Conv": convolution,
    "MaxUnpool": unpool,
}
