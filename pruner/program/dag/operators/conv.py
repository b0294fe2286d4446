"""Convolutions, NCHW, dilation 1. The padded copy is a stage even where nothing is padded."""

from __future__ import annotations

from pruner.program.dag.build import add, axes, int_, load, mul
from pruner.program.dag.expr import Axis, Expr
from pruner.program.dag.operators.builder import Draft, positive
from pruner.program.dag.operators.padding import Padding, output_size, pad_amounts, pad_nchw


def window(position: Axis, stride: int, offset: Axis) -> Expr:
    """Input coordinate ``position * stride + offset``."""
    return add(mul(position, int_(stride)), offset)


def conv2d_layer(
    batch: int,
    in_channels: int,
    height: int,
    width: int,
    out_channels: int,
    kernel_h: int,
    kernel_w: int,
    stride: int,
    padding: Padding,
) -> Draft:
    """out[n, f, y, x] = sum over (c, r, s) of in[n, c, y*stride + r, x*stride + s] k[f, c, r, s].

    Stages: data, padded data, kernel, convolution.
    """
    positive(batch=batch, in_channels=in_channels, height=height, width=width)
    positive(out_channels=out_channels, kernel_h=kernel_h, kernel_w=kernel_w, stride=stride)
    top, left, bottom, right = pad_amounts(padding, kernel_h, kernel_w)
    out_h = output_size(height, kernel_h, top, bottom, stride)
    out_w = output_size(width, kernel_w, left, right, stride)
    draft = Draft()
    data = draft.placeholder("input0", (batch, in_channels, height, width))
    padded = pad_nchw(draft, data, (top, left, bottom, right), name="pad_temp")
    kernel = draft.placeholder("input1", (out_channels, in_channels, kernel_h, kernel_w))
    n, f, y, x, c, r, s = axes(7)
    draft.reduce(
        "compute",
        [("nn", batch), ("ff", out_channels), ("yy", out_h), ("xx", out_w)],
        [("rc", in_channels), ("ry", kernel_h), ("rx", kernel_w)],
        mul(
            load(padded, n, c, window(y, stride, r), window(x, stride, s)),
            load(kernel, f, c, r, s),
        ),
        tag="conv2d_nchw",
    )
    return draft


def depthwise_conv2d_layer(
    batch: int,
    channels: int,
    height: int,
    width: int,
    kernel_h: int,
    kernel_w: int,
    stride: int,
    padding: Padding,
) -> Draft:
    """out[b, c, i, j] = sum over (u, v) of in[b, c, i*stride + u, j*stride + v] k[c, 0, u, v].

    Stages: data, padded data, kernel, convolution.
    """
    positive(batch=batch, channels=channels, height=height, width=width)
    positive(kernel_h=kernel_h, kernel_w=kernel_w, stride=stride)
    top, left, bottom, right = pad_amounts(padding, kernel_h, kernel_w)
    out_h = output_size(height, kernel_h, top, bottom, stride)
    out_w = output_size(width, kernel_w, left, right, stride)
    draft = Draft()
    data = draft.placeholder("data", (batch, channels, height, width))
    padded = pad_nchw(draft, data, (top, left, bottom, right), name="PaddedInput")
    kernel = draft.placeholder("kernel", (channels, 1, kernel_h, kernel_w))
    b, c, i, j, u, v = axes(6)
    draft.reduce(
        "DepthwiseConv2d",
        [("b", batch), ("c", channels), ("i", out_h), ("j", out_w)],
        [("di", kernel_h), ("dj", kernel_w)],
        mul(
            load(padded, b, c, window(i, stride, u), window(j, stride, v)),
            load(kernel, c, int_(0), u, v),
        ),
        tag="depthwise_conv2d_nchw",
    )
    return draft
