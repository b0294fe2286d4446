"""Compute definitions of the field's standard operators, written with TVM tensor expressions.

The order of the stages is part of the record format: step indices refer to it. As in TVM's operator
library, a convolution always has a pad stage (a plain copy where the padding is zero), pooling has
one only where some padding is not zero. Images are NCHW; records are float32.

Runs in both TVM versions (0.19 for Ansor, 0.27 for MetaSchedule), so that both tune the same thing.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

# by name, because type checkers see the TVM of the main environment, which has no te schedules
te: Any = importlib.import_module("tvm.te")
topi: Any = importlib.import_module("tvm.topi")

Padding = tuple[int, int, int, int]  # top, left, bottom, right
Tensors = list[Any]


def padding_of(padding: str | int, kernel_h: int, kernel_w: int) -> Padding:
    """Turn "SAME", "VALID" or one integer into (top, left, bottom, right)."""
    if padding == "VALID":
        return (0, 0, 0, 0)
    if padding == "SAME":
        top, left = kernel_h // 2, kernel_w // 2
        return (top, left, kernel_h - 1 - top, kernel_w - 1 - left)
    amount = int(padding)
    return (amount, amount, amount, amount)


def _pad(data: Any, padding: Padding) -> Any:
    top, left, bottom, right = padding
    return topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name="pad")


def _out_size(size: int, before: int, after: int, kernel: int, stride: int) -> int:
    return (size + before + after - kernel) // stride + 1


def matmul(m: int, k: int, n: int, dtype: str = "float32") -> Tensors:
    """C[x, y] = sum_k A[x, k] B[k, y]."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda x, y: te.sum(a[x, r] * b[r, y], axis=r), name="C")
    return [a, b, c]


def batch_matmul(outer: int, inner: int, m: int, k: int, n: int, dtype: str = "float32") -> Tensors:
    """One matmul for each of ``outer * inner`` batch entries, no transposes."""
    batch = outer * inner
    a = te.placeholder((batch, m, k), dtype, name="A")
    b = te.placeholder((batch, k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((batch, m, n), lambda z, x, y: te.sum(a[z, x, r] * b[z, r, y], axis=r), name="C")
    return [a, b, c]


def conv2d(
    n: int,
    ci: int,
    h: int,
    w: int,
    co: int,
    kh: int,
    kw: int,
    stride: int,
    padding: str | int,
    dtype: str = "float32",
) -> Tensors:
    """Convolution, NCHW data and OIHW kernel, dilation 1."""
    top, left, bottom, right = sides = padding_of(padding, kh, kw)
    data = te.placeholder((n, ci, h, w), dtype, name="data")
    padded = _pad(data, sides)
    kernel = te.placeholder((co, ci, kh, kw), dtype, name="kernel")
    rc = te.reduce_axis((0, ci), name="rc")
    shape = (n, co, _out_size(h, top, bottom, kh, stride), _out_size(w, left, right, kw, stride))
    return [data, kernel, _windows(padded, kernel, shape, stride, [rc])]


def depthwise_conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: int,
    padding: str | int,
    dtype: str = "float32",
) -> Tensors:
    """Depthwise convolution with channel multiplier 1, kernel (C, 1, KH, KW)."""
    top, left, bottom, right = sides = padding_of(padding, kh, kw)
    data = te.placeholder((n, c, h, w), dtype, name="data")
    padded = _pad(data, sides)
    kernel = te.placeholder((c, 1, kh, kw), dtype, name="kernel")
    shape = (n, c, _out_size(h, top, bottom, kh, stride), _out_size(w, left, right, kw, stride))
    return [data, kernel, _windows(padded, kernel, shape, stride, [])]


def _windows(
    padded: Any, kernel: Any, shape: Sequence[int], stride: int, channels: Sequence[Any]
) -> Any:
    """Sum of image times kernel over its window and over `channels` (none: each by itself)."""
    ry = te.reduce_axis((0, kernel.shape[2]), name="ry")
    rx = te.reduce_axis((0, kernel.shape[3]), name="rx")

    def element(b: Any, f: Any, y: Any, x: Any) -> Any:
        image, weight = (channels[0], channels[0]) if channels else (f, 0)
        product = padded[b, image, y * stride + ry, x * stride + rx] * kernel[f, weight, ry, rx]
        return te.sum(product, axis=[*channels, ry, rx])

    return te.compute(shape, element, name="conv")


def pool(
    kind: str,
    n: int,
    c: int,
    h: int,
    w: int,
    kh: int,
    kw: int,
    stride: int,
    padding: str | int,
    dtype: str = "float32",
) -> Tensors:
    """Max or average pooling; the average does not count padded elements."""
    data = te.placeholder((n, c, h, w), dtype, name="data")
    out = topi.nn.pool2d(
        data,
        [kh, kw],
        [stride, stride],
        [1, 1],
        list(padding_of(padding, kh, kw)),
        kind,
        ceil_mode=False,
        layout="NCHW",
        count_include_pad=False,
    )
    return [data, out]


def softmax(rows: int, columns: int, dtype: str = "float32") -> Tensors:
    """exp(x - max) / sum over the last axis."""
    data = te.placeholder((rows, columns), dtype, name="data")
    return [data, topi.nn.softmax(data, axis=-1)]


def layer_norm(rows: int, columns: int, dtype: str = "float32") -> Tensors:
    """Zero mean and unit variance over the last axis, then scale and shift."""
    data = te.placeholder((rows, columns), dtype, name="data")
    gamma = te.placeholder((columns,), dtype, name="gamma")
    beta = te.placeholder((columns,), dtype, name="beta")
    return [data, gamma, beta, topi.nn.layer_norm(data, gamma, beta, [1])]


def reduction(shape: Sequence[int], axis: int | Sequence[int], keepdims: bool) -> Tensors:
    """Sum over one axis or several."""
    data = te.placeholder(tuple(shape), name="data")
    return [data, topi.sum(data, axis, keepdims)]


def relu(*shape: int) -> Tensors:
    """max(x, 0)."""
    data = te.placeholder(tuple(shape), name="data")
    return [data, topi.nn.relu(data)]


_BUILDERS: dict[str, Callable[..., Tensors]] = {
    "matmul_layer": matmul,
    "batch_matmul_layer": batch_matmul,
    "conv2d_layer": conv2d,
    "depthwise_conv2d_layer": depthwise_conv2d,
    "pool_layer": pool,
    "reduction_layer": reduction,
    "relu_layer": relu,
}


def fuse(tensors: Tensors, name: str) -> Tensors:
    """Add ``relu``, ``add`` (a second tensor) or ``bias`` (one number a channel) behind."""
    *inputs, out = tensors
    if name == "bias":
        channel = 1 if len(out.shape) == 4 else len(out.shape) - 1
        bias = te.placeholder((out.shape[channel],), out.dtype, name="bias")
        total = te.compute(out.shape, lambda *i: out(*i) + bias(i[channel]), name="bias_add")
        return [*inputs, bias, total]
    if name == "relu":
        return [*inputs, topi.nn.relu(out)]
    if name == "add":
        other = te.placeholder(out.shape, out.dtype, name="other")
        total = te.compute(out.shape, lambda *i: out(*i) + other(*i), name="add")
        return [*inputs, other, total]
    raise ValueError(f"cannot fuse {name!r}: add, bias and relu are known")


def tensors_for(workload_key: str, fused: Sequence[str]) -> Tensors:
    """Inputs and output of a workload key, with the fused operators behind it."""
    op, *args = json.loads(workload_key)
    if op not in _BUILDERS:
        raise ValueError(f"unknown operator {op!r}, known: {', '.join(sorted(_BUILDERS))}")
    tensors = _BUILDERS[op](*args)
    for name in fused:
        tensors = fuse(tensors, name)
    return tensors
