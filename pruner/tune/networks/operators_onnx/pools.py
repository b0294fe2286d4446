"""Pools whose padding follows from their sizes: TVM may have a window too few."""

from __future__ import annotations

from functools import partial
from typing import Any

from pruner.tune.networks.operators_onnx.tensors import shape_of


def _padded(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert a pool with a window for every step of the stride (``auto_pad``)."""
    mode, kernel = attrs.get("auto_pad", b"NOTSET"), attrs["kernel_shape"]
    if mode not in (b"SAME_UPPER", b"SAME_LOWER"):
        return None
    ones, begin, end = [1] * len(kernel), [], []
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    for n, k, s, d in zip(shape_of(inputs[0])[2:], kernel, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        begin.append(total // 2 if mode == b"SAME_UPPER" else total - total // 2)
        end.append(total - begin[-1])
    fixed = {k: v for k, v in attrs.items() if k not in ("auto_pad", "ceil_mode")}
    return front.convert(name, inputs, {**fixed, "pads": [*begin, *end]})


CONVERTERS = {name: partial(_padded, name) for name in ("AveragePool", "LpPool", "MaxPool")}
