"""Convolution, NCHW data and OIHW kernel, dilation 1; stages: data, padded, kernel, result."""

from __future__ import annotations

from typing import Any

from pruner.data.workload import ARGUMENTS, Padding, pad_amounts
from pruner.program.dag.expr import axes, load, mul
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive
from pruner.program.dag.operators.windows import (
    output_sizes,
    pad_nchw,
    te_convolution,
    torch_convolution,
    window,
)


def _dag(
    n: int, ci: int, h: int, w: int, co: int, kh: int, kw: int, stride: int, padding: Padding
) -> DagBuilder:
    positive(n=n, ci=ci, h=h, w=w, co=co, kh=kh, kw=kw, stride=stride)
    amounts = pad_amounts(padding, kh, kw)
    out_h, out_w = output_sizes((h, w), (kh, kw), amounts, stride)
    # Names are TenSet's: Ansor's steps and the workload flags refer to them.
    dag = DagBuilder()
    data = dag.placeholder("input0", (n, ci, h, w))
    padded = pad_nchw(dag, data, amounts, name="pad_temp")
    kernel = dag.placeholder("input1", (co, ci, kh, kw))
    b, f, y, x, c, r, s = axes(7)
    dag.reduce(
        "compute",
        [("nn", n), ("ff", co), ("yy", out_h), ("xx", out_w)],
        [("rc", ci), ("ry", kh), ("rx", kw)],
        mul(
            load(padded, b, c, window(y, stride, r), window(x, stride, s)),
            load(kernel, f, c, r, s),
        ),
    )
    return dag


def _te(te: Any, topi: Any, dtype: str, *args: Any) -> Tensors:
    n, ci, h, w, co, kh, kw, stride, padding = args
    shapes, names = ((n, ci, h, w), (co, ci, kh, kw)), ("pad_temp", "conv")
    return te_convolution(
        te, topi, dtype, *shapes, stride, padding, names=names, channel=lambda _, rc: rc
    )


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=torch_convolution,
    torch_takes_bias=True,
    options=ARGUMENTS["conv2d"],
)
