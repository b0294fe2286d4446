"""Grouped convolution, NCHW, kernel (CO, CI / groups, KH, KW), dilation 1.

There is no compute DAG, because no records of Ansor's show how it numbers these stages.
"""

from __future__ import annotations

from typing import Any

from pruner.data.workload import ARGUMENTS
from pruner.program.dag.operators.builder import Operator, Tensors
from pruner.program.dag.operators.windows import te_convolution, torch_convolution


def _te(te: Any, topi: Any, dtype: str, *args: Any) -> Tensors:
    n, ci, h, w, co, groups, kh, kw, stride, padding = args
    if ci % groups or co % groups:
        raise ValueError(f"groups={groups} must divide ci={ci} and co={co}")
    inner, outer = ci // groups, co // groups
    shapes, names = ((n, ci, h, w), (co, inner, kh, kw)), ("pad_temp", "compute")

    def channel(f: Any, rc: Any) -> Any:
        return f // outer * inner + rc

    return te_convolution(te, topi, dtype, *shapes, stride, padding, names=names, channel=channel)


OPERATOR = Operator(
    dag=None,
    te=_te,
    torch=torch_convolution,
    torch_takes_bias=True,
    options=ARGUMENTS["grouped_conv2d"],
)
