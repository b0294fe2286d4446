"""Extremes, truth values and moments over dimensions.

TVM's front end has no minimum over a dimension, and its maximum sorts: such a library needs more
than the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten


@converts(aten.amax.default, aten.amin.default)
def extreme(node: Any, importer: Any) -> Any:
    """Emit a maximum or a minimum over some dimensions, or all."""
    x, *options = importer.retrieve_args(node)
    dims = options[0] if options else []
    keep = options[1] if len(options) > 1 else False
    reduce = load_tvm().relax.op.max if "amax" in node.target.__name__ else load_tvm().relax.op.min
    return importer.block_builder.emit(reduce(x, list(dims) or None, keep))


@converts(aten.prod.dim_int)
def product(node: Any, importer: Any) -> Any:
    """Emit a product over a dimension."""
    x, dim, keep = (*importer.retrieve_args(node), False)[:3]
    return importer.block_builder.emit(load_tvm().relax.op.prod(x, dim, keep))


@replaces(aten.max.dim)
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Take values and places by reductions of their own."""
    return torch.amax(x, dim, keepdim), torch.argmax(x, dim, keepdim)


@replaces(aten.min.dim)
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Take values and places by reductions of their own."""
    return torch.amin(x, dim, keepdim), torch.argmin(x, dim, keepdim)


@replaces(aten.any.default, aten.any.dim, aten.any.dims)
def any_true(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Take the maximum of truth values."""
    return _truths(torch.amax, x, dim, keepdim)


@replaces(aten.all.default, aten.all.dim, aten.all.dims)
def all_true(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Take the minimum of truth values."""
    return _truths(torch.amin, x, dim, keepdim)


@replaces(aten.var_mean.correction)
def var_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """Take both by themselves."""
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return torch.var(x, dims, correction=correction, keepdim=keepdim), torch.mean(x, dims, keepdim)


@replaces(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Count the elements that are not zero for order 0."""
    if order != 0:
        return NotImplemented
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return torch.sum((x != 0).to(dtype or x.dtype), dims, keepdim)


@replaces(aten._cdist_forward.default)
def distances(x: Tensor, y: Tensor, order: float, _: int | None) -> Any:
    """Take norms of all differences."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), order, -1)


@replaces(aten.cummax.default)
def cummax(x: Tensor, dim: int) -> Any:
    """Take the maxima of all beginnings."""
    return _beginnings(x, dim, torch.amax)


@replaces(aten.cummin.default)
def cummin(x: Tensor, dim: int) -> Any:
    """Take the minima of all beginnings."""
    return _beginnings(x, dim, torch.amin)


@replaces(aten.logcumsumexp.default)
def logcumsumexp(x: Tensor, dim: int) -> Any:
    """Sum all beginnings with their maximum taken out."""
    begun, rows = x.movedim(dim, -1), x.shape[dim]
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    return torch.where(seen, begun.unsqueeze(-2), float("-inf")).logsumexp(-1).movedim(-1, dim)


def _truths(reduce: Any, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Reduce truth values; an empty list names no dimension."""
    if dim == [] or not x.ndim:
        return x != 0
    found: Tensor = reduce((x != 0).to(torch.int8), () if dim is None else dim, keepdim) != 0
    return found


def _beginnings(x: Tensor, dim: int, reduce: Any) -> tuple[Tensor, Tensor]:
    """Reduce the first 1, 2, ... elements; the last of equal elements counts."""
    moved, size = x.movedim(dim, -1), x.shape[dim]
    seen = torch.ones(size, size, dtype=torch.bool).tril()
    # the first element stands for the unseen ones
    offered = torch.where(seen, moved.unsqueeze(-2), moved[..., :1].unsqueeze(-2))
    found = reduce(offered, -1)
    equal = seen & (moved.unsqueeze(-2) == found.unsqueeze(-1))
    places = torch.where(equal, torch.arange(size), -1).amax(-1)
    return found.movedim(-1, dim), places.movedim(-1, dim)
