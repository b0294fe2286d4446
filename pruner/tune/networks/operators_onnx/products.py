"""Transposed convolutions, Einstein sums and transforms, as products that can be tuned."""

from __future__ import annotations

from typing import Any

from pruner.tune.networks.operators_onnx.tensors import shape_of
from pruner.tune.tvm_import import load_tvm


def einsum(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Einsum to Relax's operator."""
    equation = attrs["equation"].decode().replace(" ", "")
    return load_tvm().relax.op.einsum(list(inputs), equation)


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
    upper = attrs.get("auto_pad", b"NOTSET") == b"SAME_UPPER"
    begin, end, behind = [], [], []
    for size, k, s, d, o, out in zip(
        sizes, kernel, strides, dilations, more, wanted[-len(sizes) :], strict=True
    ):
        total = (size - 1) * s + o + (k - 1) * d + 1 - out
        half = max(total, 0) // 2
        begin.append(half if upper else max(total, 0) - half)
        end.append(max(total, 0) - begin[-1])
        behind.append(max(-total, 0))
    plain = {k: v for k, v in attrs.items() if k not in ("output_shape", "auto_pad")}
    result = front.convert("ConvTranspose", [data, weight], {**plain, "pads": [*begin, *end]})
    if any(behind):
        width = [0, 0, 0, 0, *(n for after in behind for n in (0, after))]
        result = front.bb.normalize(op.nn.pad(result, width))
    if bias is None:
        return result
    return op.add(result, op.reshape(bias, [1, -1] + [1] * len(sizes)))


CONVERTERS = {"ConvTranspose": transposed_convolution, "Einsum": einsum}
