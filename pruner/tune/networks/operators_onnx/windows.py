"""Pools, convolutions, Einstein sums, and quantised products.

TVM may have a window too few for a padding that follows from sizes. For a convolution with such a
padding it emits a TIR function, through which no layout passes. Its norms of incomplete windows are
too large, and it has no places of maxima.

Products of quantised tensors are of integers, or in float between the steps of quantisation. The
format of today's exporters, plain operators between QuantizeLinear and DequantizeLinear, is TVM's
own business. The older operators are rewritten to it, which is right within a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.operators_onnx.recurrent import Emitter
from pruner.tune.networks.rewrites.operators import array, constant, dtype_of, is_float, shape_of
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


def transposed_convolution(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert ConvTranspose with an output shape, from which the padding follows."""
    op, (data, weight, bias) = load_tvm().relax.op, (inputs[0], inputs[1], inputs[2])
    wanted = attrs.get("output_shape")
    if wanted is None:
        return None
    sizes, kernel = shape_of(data)[2:], shape_of(weight)[2:]
    strides = attrs.get("strides", [1] * len(sizes))
    dilations = attrs.get("dilations", [1] * len(sizes))
    more = attrs.get("output_padding", [0] * len(sizes))
    totals = [
        (size - 1) * s + o + (k - 1) * d + 1 - out
        for size, k, s, d, o, out in zip(
            sizes, kernel, strides, dilations, more, wanted[-len(sizes) :], strict=True
        )
    ]
    result = front.convert("ConvTranspose", [data, weight], padded(attrs, "output_shape", totals))
    behind = [max(-total, 0) for total in totals]
    if any(behind):
        width = [0, 0, 0, 0, *(n for after in behind for n in (0, after))]
        result = front.bb.normalize(op.nn.pad(result, width))
    if bias is None:
        return result
    return op.add(result, op.reshape(bias, [1, -1] + [1] * len(sizes)))


def padded(attrs: Mapping[str, Any], unused: str, totals: Sequence[int]) -> dict[str, Any]:
    """Replace ``auto_pad`` and an unused attribute by fixed pads, by their totals."""
    whole = [max(total, 0) for total in totals]
    begin = [n // 2 if attrs.get("auto_pad") == b"SAME_UPPER" else n - n // 2 for n in whole]
    end = [n - before for n, before in zip(whole, begin, strict=True)]
    kept = {k: v for k, v in attrs.items() if k not in (unused, "auto_pad")}
    return {**kept, "pads": [*begin, *end]}


def quantized_matmul(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert QLinearMatMul (a, scale, zero; b, scale, zero; scale, zero of the result)."""
    first, second = (_real(front, inputs[i : i + 3], i // 3 - 2) for i in (0, 3))
    product = front.convert("MatMul", [first, second], {})
    return _quantised(front, product, inputs[6:8], inputs[0], -2)


def quantized_convolution(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert QLinearConv; its bias has the scale of the products."""
    op = load_tvm().relax.op
    data, weight = _real(front, inputs[0:3], 1), _real(front, inputs[3:6], 0)
    bias = inputs[8]
    if bias is not None:
        scale = op.multiply(inputs[1], inputs[4])
        bias = front.bb.normalize(op.multiply(op.astype(bias, "float32"), scale))
    result = front.operator("Conv", [data, weight, bias], attrs)
    return _quantised(front, result, inputs[6:8], inputs[0], 1)


def quantized_gemm(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Microsoft's QGemm; its bias has the scale of the products."""
    op, last = load_tvm().relax.op, 0 if attrs.get("transB") else 1
    first, second = _real(front, inputs[0:3], 1), _real(front, inputs[3:6], last)
    bias = inputs[6]
    if bias is not None:
        scale = op.multiply(inputs[1], op.reshape(inputs[4], [-1]))
        bias = front.bb.normalize(op.multiply(op.astype(bias, "float32"), scale))
        bias = op.multiply(bias, constant(attrs.get("alpha", 1.0), "float32"))
        bias = front.bb.normalize(bias)
    result = front.convert("Gemm", [first, second, bias], attrs)
    if inputs[7] is None:
        return result
    return _quantised(front, result, inputs[7:9], inputs[0], 0)


def integer_matmul(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert MatMulInteger with zero points of tensors, rows or columns."""
    op = load_tvm().relax.op
    rows = inputs[2]
    if rows is not None and len(shape_of(rows)) == 1 and shape_of(rows) != [1]:
        rows = op.expand_dims(rows, 1)
    first, second = _centred(front, inputs[0], rows), _centred(front, inputs[1], inputs[3])
    return op.matmul(first, second)


def integer_convolution(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert ConvInteger; zero points are of all, or of output channels."""
    op, zero = load_tvm().relax.op, inputs[3]
    if zero is not None and shape_of(zero) not in ([], [1]):
        zero = op.reshape(zero, [-1] + [1] * (len(shape_of(inputs[1])) - 1))
    data, weight = _centred(front, inputs[0], inputs[2]), _centred(front, inputs[1], zero)
    return front.operator("Conv", [data, weight], attrs)


def _real(front: Any, parts: Any, axis: int) -> Any:
    """Dequantise; ``axis``: of scales that are a list."""
    data, *steps = parts
    axis %= max(len(shape_of(data)), 1)
    return front.convert("DequantizeLinear", [data, *_steps(front, steps)], {"axis": axis})


def _quantised(front: Any, data: Any, steps: Any, like: Any, axis: int) -> Any:
    """Quantise; a zero point of None is zero of the type of ``like``."""
    scale, zero = _steps(front, steps)
    zero = constant(0, dtype_of(like)) if zero is None else zero
    axis %= max(len(shape_of(data)), 1)
    return front.convert("QuantizeLinear", [data, scale, zero], {"axis": axis})


def _steps(front: Any, parts: Any) -> Any:
    """Take a list of a single number as a number."""
    op = load_tvm().relax.op
    return [
        front.bb.normalize(op.reshape(one, [])) if one is not None and shape_of(one) == [1] else one
        for one in parts
    ]


def _centred(front: Any, data: Any, zero: Any) -> Any:
    """Subtract the zero point, in int32."""
    op = load_tvm().relax.op
    wide = op.astype(data, "int32")
    if zero is not None:
        wide = op.subtract(wide, op.astype(zero, "int32"))
    return front.bb.normalize(wide)


def _between(name: str, count: int, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert an operator of Microsoft's with `count` quantised inputs by ONNX's own."""
    real = [_real(front, inputs[i : i + 3], 0) for i in range(0, 3 * count, 3)]
    if attrs.get("channels_last"):
        raise ValueError("its channels are last")
    result = front.operator(name, real, attrs)
    return _quantised(front, result, inputs[3 * count : 3 * count + 2], inputs[0], 0)


def quantized_concat(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Microsoft's QLinearConcat; the scale of the result comes first."""
    real = [_real(front, inputs[i : i + 3], 0) for i in range(2, len(inputs), 3)]
    result = front.convert("Concat", real, attrs)
    return _quantised(front, result, inputs[:2], inputs[2], 0)


def quantized_softmax(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Microsoft's QLinearSoftmax; its version of Softmax is an attribute."""
    data = _real(front, inputs[:3], 0)
    result = front.convert("Softmax", [data], {"axis": -1, **attrs}, attrs["opset"])
    return _quantised(front, result, inputs[3:5], inputs[0], 0)


MICROSOFT = {
    "QGemm": quantized_gemm,
    "QLinearAdd": partial(_between, "Add", 2),
    "QLinearAveragePool": partial(_between, "AveragePool", 1),
    "QLinearConcat": quantized_concat,
    "QLinearGlobalAveragePool": partial(_between, "GlobalAveragePool", 1),
    "QLinearLeakyRelu": partial(_between, "LeakyRelu", 1),
    "QLinearMul": partial(_between, "Mul", 2),
    "QLinearSigmoid": partial(_between, "Sigmoid", 1),
    "QLinearSoftmax": quantized_softmax,
}

CONVERTERS: dict[str, Any] = {
    **{name: partial(_pool, name) for name in ("AveragePool", "LpPool", "MaxPool")},
    **MICROSOFT,
    "Conv": convolution,
    "ConvInteger": integer_convolution,
    "ConvTranspose": transposed_convolution,
    "Einsum": lambda _, inputs, attrs: load_tvm().relax.op.einsum(
        list(inputs), attrs["equation"].decode().replace(" ", "")
    ),
    "MatMulInteger": integer_matmul,
    "MaxUnpool": unpool,
    "QLinearConv": quantized_convolution,
    "QLinearMatMul": quantized_matmul,
}
