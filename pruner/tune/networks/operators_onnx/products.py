"""Products: Einstein sums, transposed convolutions, and quantised products.

Products of quantised tensors are of integers, or in float between the steps of quantisation. The
format of today's exporters, plain operators between QuantizeLinear and DequantizeLinear, is TVM's
own business. The older operators are rewritten to it, which is right within a step.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pruner.tune.networks.operators_onnx.tensors import constant, dtype_of, shape_of
from pruner.tune.tvm_import import load_tvm


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
    **MICROSOFT,
    "ConvInteger": integer_convolution,
    "ConvTranspose": transposed_convolution,
    "Einsum": lambda _, inputs, attrs: load_tvm().relax.op.einsum(
        list(inputs), attrs["equation"].decode().replace(" ", "")
    ),
    "MatMulInteger": integer_matmul,
    "QLinearConv": quantized_convolution,
    "QLinearMatMul": quantized_matmul,
}
