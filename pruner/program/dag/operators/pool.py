"""Two-dimensional pooling, NCHW, no ceil mode."""

from __future__ import annotations

from pruner.program.dag.build import FLOAT32_MIN, axes, div, float_, load
from pruner.program.dag.operators.builder import Draft, positive
from pruner.program.dag.operators.conv import window
from pruner.program.dag.operators.padding import Padding, output_size, pad_amounts, pad_nchw


def pool_layer(
    kind: str,
    batch: int,
    channels: int,
    height: int,
    width: int,
    kernel_h: int,
    kernel_w: int,
    stride: int,
    padding: Padding,
) -> Draft:
    """Maximum or mean of every window.

    Stages: data, padded data (only where something is padded), window maximum or window sum, and
    for the mean the division by kernel_h * kernel_w (padding counted, as TOPI's default).
    """
    if kind not in ("max", "avg"):
        raise ValueError(f"pooling must be max or avg, got {kind!r}")
    positive(batch=batch, channels=channels, height=height, width=width)
    positive(kernel_h=kernel_h, kernel_w=kernel_w, stride=stride)
    amounts = top, left, bottom, right = pad_amounts(padding, kernel_h, kernel_w)
    out_h = output_size(height, kernel_h, top, bottom, stride)
    out_w = output_size(width, kernel_w, left, right, stride)
    is_max = kind == "max"
    identity = FLOAT32_MIN if is_max else 0.0
    draft = Draft()
    source = draft.placeholder("data", (batch, channels, height, width))
    if any(amounts):
        source = pad_nchw(
            draft, source, amounts, name="pad_temp", axis_name="ax", value=identity, bounds="needed"
        )
    n, c, y, x, r, s = axes(6)
    dims = [("ax0", batch), ("ax1", channels), ("ax2", out_h), ("ax3", out_w)]
    pooled = draft.reduce(
        "tensor",
        dims,
        [("rv0", kernel_h), ("rv1", kernel_w)],
        load(source, n, c, window(y, stride, r), window(x, stride, s)),
        combiner="max" if is_max else "add",
        identity=identity,
        tag="pool_max" if is_max else "pool_sum",
    )
    if not is_max:
        mean = div(load(pooled, n, c, y, x), float_(kernel_h * kernel_w))
        draft.compute("tensor", dims, mean, tag="elemwise")
    return draft
