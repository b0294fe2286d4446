"""The padded image and its windows, common to convolutions and pooling (NCHW)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pruner.data.workload import Amounts, pad_amounts
from pruner.program.dag.expr import (
    Axis,
    Expr,
    add,
    all_of,
    axes,
    compare,
    float_,
    if_then_else,
    int_,
    load,
    mul,
    sub,
)
from pruner.program.dag.operators.builder import DagBuilder


def window(position: Axis, stride: int, offset: Axis) -> Expr:
    """Return the input coordinate ``position * stride + offset``."""
    return add(mul(position, int_(stride)), offset)


def output_sizes(
    sizes: tuple[int, int], kernel: tuple[int, int], amounts: Amounts, stride: int
) -> tuple[int, int]:
    """Return the windows along height and width; raise ValueError where no window fits."""
    top, left, bottom, right = amounts
    found = []
    for size, least, before, after in zip(sizes, kernel, (top, left), (bottom, right), strict=True):
        windows = (size - least + before + after) // stride + 1
        if windows < 1:
            raise ValueError(f"a window of {least} does not fit into {size} + {before} + {after}")
        found.append(windows)
    return found[0], found[1]


def pad_nchw(
    dag: DagBuilder,
    data: int,
    amounts: Amounts,
    *,
    name: str,
    axis_name: str = "i",
    value: float = 0.0,
    bounds: Literal["both", "needed"] = "both",
) -> int:
    """Add the padded copy of the NCHW stage ``data``, also without padding.

    ``bounds="both"`` compares with both ends (TOPI's Python ``pad``), ``"needed"`` with padded ends
    only (its C++ ``pad``, behind pooling).
    """
    shape = dag.stages[data].shape
    before, after = (0, 0, *amounts[:2]), (0, 0, *amounts[2:])
    conditions: list[Expr] = []
    indices: list[Expr] = []
    for axis, size, front, back in zip(axes(4), shape, before, after, strict=True):
        # The comparisons remain in the body and are counted, so which of them TOPI writes matters.
        padded = front + back > 0
        if front or (padded and bounds == "both"):
            conditions.append(compare("ge", axis, int_(front)))
        if back or (padded and bounds == "both"):
            conditions.append(compare("lt", axis, int_(size + front)))
        indices.append(sub(axis, int_(front)))
    body: Expr = load(data, *indices)
    if conditions:
        body = if_then_else(all_of(conditions), body, float_(value))
    extents = [a + b + c for a, b, c in zip(shape, before, after, strict=True)]
    dims = [(f"{axis_name}{i}", extent) for i, extent in enumerate(extents)]
    return dag.compute(name, dims, body, tag="injective,pad")


def te_pad(topi: Any, data: Any, amounts: Amounts, name: str) -> Any:
    """Return the padded copy as TE tensor, named as in the DAG."""
    top, left, bottom, right = amounts
    return topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name=name)


def te_windows(
    te: Any,
    padded: Any,
    kernel: Any,
    shape: Sequence[int],
    stride: int,
    channels: Sequence[Any],
    name: str = "conv",
) -> Any:
    """Sum image times kernel over its window and `channels` (none: depthwise)."""
    ry = te.reduce_axis((0, kernel.shape[2]), name="ry")
    rx = te.reduce_axis((0, kernel.shape[3]), name="rx")

    def element(b: Any, f: Any, y: Any, x: Any) -> Any:
        image, weight = (channels[0], channels[0]) if channels else (f, 0)
        product = padded[b, image, y * stride + ry, x * stride + rx] * kernel[f, weight, ry, rx]
        return te.sum(product, axis=[*channels, ry, rx])

    return te.compute(shape, element, name=name)


def torch_pad(
    torch: Any, spec: Mapping[str, Any], value: float = 0.0
) -> tuple[Callable[[Any], Any], tuple[int, int]]:
    """Return a function that pads unevenly, and the padding left to torch."""
    top, left, bottom, right = pad_amounts(spec["padding"], spec["kh"], spec["kw"])
    # max_pool2d raises for more padding than half a window.
    fits = top <= spec["kh"] // 2 and left <= spec["kw"] // 2
    if (top, left) == (bottom, right) and fits:
        return lambda x: x, (top, left)
    pad = torch.nn.functional.pad
    return lambda x: pad(x, (left, right, top, bottom), value=value), (0, 0)


def torch_convolution(torch: Any, spec: Mapping[str, Any]) -> Callable[[Any, Any, Any], Any]:
    """Return torch's convolution of image, kernel and bias."""
    conv2d, stride = torch.nn.functional.conv2d, spec["stride"]
    pad, padding = torch_pad(torch, spec)
    groups = spec.get("groups", spec.get("c", 1))  # depthwise: one a channel
    return lambda data, kernel, bias: conv2d(
        pad(data), kernel, bias, stride, padding, groups=groups
    )
