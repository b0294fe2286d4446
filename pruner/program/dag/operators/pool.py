"""Two-dimensional pooling, NCHW, no ceil mode: maximum or mean of every window.

The mean divides by kh * kw: padding counts, as the published logs have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pruner.data.workload import ARGUMENTS, Padding, pad_amounts
from pruner.program.dag.expr import FLOAT32_MIN, axes, div, float_, load
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive
from pruner.program.dag.operators.windows import output_sizes, pad_nchw, torch_pad, window


def _dag(
    kind: str, n: int, c: int, h: int, w: int, kh: int, kw: int, stride: int, padding: Padding
) -> DagBuilder:
    if kind not in ("max", "avg"):
        raise ValueError(f"pooling must be max or avg, got {kind!r}")
    positive(n=n, c=c, h=h, w=w, kh=kh, kw=kw, stride=stride)
    amounts = pad_amounts(padding, kh, kw)
    out_h, out_w = output_sizes((h, w), (kh, kw), amounts, stride)
    is_max = kind == "max"
    identity = FLOAT32_MIN if is_max else 0.0
    dag = DagBuilder()
    source = dag.placeholder("data", (n, c, h, w))
    # Without padding TOPI adds no copy stage, unlike TOPI's convolutions.
    if any(amounts):
        source = pad_nchw(
            dag, source, amounts, name="pad_temp", axis_name="ax", value=identity, bounds="needed"
        )
    b, ch, y, x, r, s = axes(6)
    dims = [("ax0", n), ("ax1", c), ("ax2", out_h), ("ax3", out_w)]
    pooled = dag.reduce(
        "tensor",
        dims,
        [("rv0", kh), ("rv1", kw)],
        load(source, b, ch, window(y, stride, r), window(x, stride, s)),
        combiner="max" if is_max else "add",
        identity=identity,
    )
    if not is_max:
        # Both stages are called "tensor" in TOPI, the sum and the mean.
        mean = div(load(pooled, b, ch, y, x), float_(kh * kw))
        dag.compute("tensor", dims, mean)
    return dag


def _te(te: Any, topi: Any, dtype: str, *args: Any) -> Tensors:
    kind, n, c, h, w, kh, kw, stride, padding = args
    data = te.placeholder((n, c, h, w), dtype, name="data")
    sides = list(pad_amounts(padding, kh, kw))
    pooled = topi.nn.pool2d(
        data, [kh, kw], [stride, stride], [1, 1], sides, kind, ceil_mode=False, layout="NCHW"
    )
    if kind == "max":
        return [data, pooled]
    # TOPI's last stage works out the size of every window anew, which is kh * kw for all of them.
    (total,) = pooled.op.input_tensors
    area = float(kh * kw)
    mean = te.compute(total.shape, lambda *i: total(*i) / te.const(area, dtype), name="pool_avg")
    return [data, mean]


def _torch(torch: Any, spec: Mapping[str, Any]) -> Callable[..., Any]:
    functional, kernel, stride = torch.nn.functional, (spec["kh"], spec["kw"]), spec["stride"]
    is_max = spec["kind"] == "max"
    pool = functional.max_pool2d if is_max else functional.avg_pool2d  # padded elements count
    pad, padding = torch_pad(torch, spec, float("-inf") if is_max else 0.0)
    return lambda x: pool(pad(x), kernel, stride, padding)


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=_torch,
    options=ARGUMENTS["pool"],
    choices={"kind": ("max", "avg")},
)
