"""The padded image and its windows, common to convolutions and pooling (NCHW)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from pruner.data.workload import Amounts, Padding, pad_amounts
from pruner.program.dag.expr import (
    Axis,
    Binary,
    Call,
    Expr,
    add,
    axes,
    float_,
    int_,
    load,
    mul,
    sub,
)
from pruner.program.dag.operators.builder import DagBuilder, Tensors


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
            conditions.append(Binary("ge", axis, int_(front), "bool"))
        if back or (padded and bounds == "both"):
            conditions.append(Binary("lt", axis, int_(size + front), "bool"))
        indices.append(sub(axis, int_(front)))
    body: Expr = load(data, *indices)
    if conditions:
        # Left-nested as TVM's && chains: text and operation counts follow the nesting.
        inside = reduce(lambda a, b: Binary("and", a, b, "bool"), conditions)
        body = Call("if_then_else", (inside, body, float_(value)), "float32")
    extents = [a + b + c for a, b, c in zip(shape, before, after, strict=True)]
    dims = [(f"{axis_name}{i}", extent) for i, extent in enumerate(extents)]
    return dag.compute(name, dims, body)


def te_convolution(
    te: Any,
    topi: Any,
    dtype: str,
    image: Sequence[int],
    weights: Sequence[int],
    stride: int,
    padding: Padding,
    *,
    names: tuple[str, str],
    channel: Callable[[Any, Any], Any] | None = None,
) -> Tensors:
    """Return image, kernel and convolution of NCHW and OIHW shapes as TE tensors.

    ``names``: of the padded copy and the result, as in the DAG; ``channel``: of the image, from
    those of the result and of the kernel (None: depthwise).
    """
    top, left, bottom, right = amounts = pad_amounts(padding, *weights[2:])
    data = te.placeholder(image, dtype, name="data")
    padded = topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name=names[0])
    kernel = te.placeholder(weights, dtype, name="kernel")
    summed = [] if channel is None else [te.reduce_axis((0, weights[1]), name="rc")]
    ry = te.reduce_axis((0, weights[2]), name="ry")
    rx = te.reduce_axis((0, weights[3]), name="rx")

    def element(b: Any, f: Any, y: Any, x: Any) -> Any:
        at, weight = (f, 0) if channel is None else (channel(f, summed[0]), summed[0])
        product = padded[b, at, y * stride + ry, x * stride + rx] * kernel[f, weight, ry, rx]
        return te.sum(product, axis=[*summed, ry, rx])

    sizes = output_sizes((image[2], image[3]), (weights[2], weights[3]), amounts, stride)
    out = te.compute((image[0], weights[0], *sizes), element, name=names[1])
    return [data, kernel, out]


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
