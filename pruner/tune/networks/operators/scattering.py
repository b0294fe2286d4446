"""Writes at indexed places: sums, products, means and extremes of each place.

TVM's ``scatter_elements`` adds, multiplies and compares, but takes only as many new values as
indices, and its indices must reach over the whole of every other dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
_LONG_NAMES = {"add": "sum", "multiply": "prod"}  # of the older `scatter(reduce=...)`


@replaces(aten.scatter.src)
def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Cut what is written, and what is written to, to the indices."""
    return _fitted(aten.scatter.src, x, dim, index, src)


@replaces(aten.scatter.value)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Any:
    """Write one value."""
    return aten.scatter.src(x, dim, index, torch.full(index.shape, value, dtype=x.dtype))


@replaces(aten.scatter.reduce)
def scatter_older(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Any:
    """Give a reduction its newer name."""
    return aten.scatter_reduce.two(x, dim, index, src, _LONG_NAMES[reduce])


@replaces(aten.scatter.value_reduce)
def scatter_value_older(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Any:
    """Reduce with one value."""
    src = torch.full(index.shape, value, dtype=x.dtype)
    return aten.scatter_reduce.two(x, dim, index, src, _LONG_NAMES[reduce])


@replaces(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Add by the general operator."""
    return aten.scatter_reduce.two(x, dim, index, src, "sum")


@replaces(aten.scatter_reduce.two)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Divide sums by counts for means; without old values begin from neutral."""
    if reduce == "mean":
        ones = torch.ones_like(x), torch.ones_like(src)
        total = x.scatter_reduce(dim, index, src, "sum", include_self=include_self)
        count = ones[0].scatter_reduce(dim, index, ones[1], "sum", include_self=include_self)
        whole = not x.dtype.is_floating_point
        return torch.div(total, count, rounding_mode="floor" if whole else None)
    if not include_self:
        start = aten.scatter.value(x, dim, index, _neutral(x.dtype, reduce))
        return aten.scatter_reduce.two(start, dim, index, src, reduce)
    return _fitted(aten.scatter_reduce.two, x, dim, index, src, reduce)


@converts(aten.scatter_reduce.two)
def scatter_elements(node: Any, importer: Any) -> Any:
    """Emit Relax's scatter."""
    x, dim, index, src, reduce = importer.retrieve_args(node)[:5]
    found = load_tvm().relax.op.scatter_elements(x, index, src, dim, _REDUCTIONS[reduce])
    return importer.block_builder.emit(found)


def _fitted(operator: Any, x: Tensor, dim: int, index: Tensor, src: Tensor, *more: Any) -> Any:
    if not x.ndim:
        one = operator(x.reshape(1), 0, index.reshape(-1), src.reshape(-1), *more)
        return one.reshape(())
    dim %= x.ndim
    if src.shape != index.shape:
        return operator(x, dim, index, src[tuple(map(slice, index.shape))], *more)
    for other in range(x.ndim):
        size = index.shape[other]
        if other != dim and size < x.shape[other]:
            written = operator(x.narrow(other, 0, size), dim, index, src, *more)
            return torch.slice_scatter(x, written, other, 0, size)
    return NotImplemented


def _neutral(dtype: torch.dtype, reduce: str) -> float:
    """Return the number that a reduction leaves unchanged."""
    if reduce in ("sum", "prod"):
        return float(reduce == "prod")
    if dtype.is_floating_point:
        return float("-inf" if reduce == "amax" else "inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max
