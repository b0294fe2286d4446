"""Depthwise convolution, NCHW, kernel (C, 1, KH, KW), channel multiplier 1, dilation 1."""

from __future__ import annotations

from typing import Any

from pruner.data.workload import ARGUMENTS, Padding, pad_amounts
from pruner.program.dag.expr import axes, int_, load, mul
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive
from pruner.program.dag.operators.windows import (
    output_sizes,
    pad_nchw,
    te_convolution,
    torch_convolution,
    window,
)


def _dag(
    n: int, c: int, h: int, w: int, kh: int, kw: int, stride: int, padding: Padding
) -> DagBuilder:
    positive(n=n, c=c, h=h, w=w, kh=kh, kw=kw, stride=stride)
    amounts = pad_amounts(padding, kh, kw)
    out_h, out_w = output_sizes((h, w), (kh, kw), amounts, stride)
    dag = DagBuilder()
    data = dag.placeholder("data", (n, c, h, w))
    padded = pad_nchw(dag, data, amounts, name="PaddedInput")
    kernel = dag.placeholder("kernel", (c, 1, kh, kw))
    b, ch, i, j, u, v = axes(6)
    dag.reduce(
        "DepthwiseConv2d",
        [("b", n), ("c", c), ("i", out_h), ("j", out_w)],
        [("di", kh), ("dj", kw)],
        mul(
            load(padded, b, ch, window(i, stride, u), window(j, stride, v)),
            load(kernel, ch, int_(0), u, v),
        ),
    )
    return dag


def _te(te: Any, topi: Any, dtype: str, *args: Any) -> Tensors:
    n, c, h, w, kh, kw, stride, padding = args
    shapes, names = ((n, c, h, w), (c, 1, kh, kw)), ("PaddedInput", "DepthwiseConv2d")
    return te_convolution(te, topi, dtype, *shapes, stride, padding, names=names)


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=torch_convolution,
    torch_takes_bias=True,
    options=ARGUMENTS["depthwise_conv2d"],
)
