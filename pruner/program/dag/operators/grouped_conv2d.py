"""Grouped convolution, NCHW, kernel (CO, CI / groups, KH, KW), dilation 1.

There is no compute DAG, because no records of Ansor's show how it numbers these stages.
"""

from __future__ import annotations

from typing import Any

from pruner.data.workload import ARGUMENTS, pad_amounts
from pruner.program.dag.operators.builder import Operator, Tensors
from pruner.program.dag.operators.windows import output_sizes, te_pad, torch_convolution


def _te(te: Any, topi: Any, dtype: str, *args: Any) -> Tensors:
    n, ci, h, w, co, groups, kh, kw, stride, padding = args
    if ci % groups or co % groups:
        raise ValueError(f"groups={groups} must divide ci={ci} and co={co}")
    amounts = pad_amounts(padding, kh, kw)
    inner, outer = ci // groups, co // groups
    data = te.placeholder((n, ci, h, w), dtype, name="data")
    padded = te_pad(topi, data, amounts, "pad_temp")
    kernel = te.placeholder((co, inner, kh, kw), dtype, name="kernel")
    rc = te.reduce_axis((0, inner), name="rc")
    ry, rx = te.reduce_axis((0, kh), name="ry"), te.reduce_axis((0, kw), name="rx")
    out_h, out_w = output_sizes((h, w), (kh, kw), amounts, stride)

    def value(b: Any, f: Any, y: Any, x: Any) -> Any:
        channel = f // outer * inner + rc
        part = padded[b, channel, y * stride + ry, x * stride + rx]
        return te.sum(part * kernel[f, rc, ry, rx], axis=[rc, ry, rx])

    return [data, kernel, te.compute((n, co, out_h, out_w), value, name="compute")]


OPERATOR = Operator(
    dag=None,
    te=_te,
    torch=torch_convolution,
    torch_takes_bias=True,
    options=ARGUMENTS["grouped_conv2d"],
)
