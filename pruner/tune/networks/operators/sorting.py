"""Orders: medians and places in a sorted list.

Sorts themselves are left to TVM; :mod:`pruner.tune.networks.rewrites.sorting` gives them functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import replaces

aten = torch.ops.aten


@replaces(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Return a number without dimensions, or no numbers, as they are."""
    if x.ndim and x.numel():
        return NotImplemented
    # a constant without elements cannot be stored
    return x.clone(), torch.zeros_like(x, dtype=torch.int64) if x.numel() else x.to(torch.int64)


@replaces(aten.sort.stable)
def sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Sort as always: equal elements keep their order."""
    return aten.sort.default(x, dim, descending)


@replaces(aten.argsort.default)
def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Take the places of a sort."""
    return aten.sort.default(x, dim, descending)[1]


@replaces(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, *in_order: bool) -> Any:
    """Take the greatest in order, as TVM's import requires."""
    if not x.ndim:
        return aten.sort.default(x)
    return aten.topk.default(x, k, dim, largest) if False in in_order else NotImplemented


@replaces(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Take one of a sort."""
    if not x.ndim:
        return aten.sort.default(x)
    found = [part.narrow(dim, k - 1, 1) for part in aten.sort.default(x, dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in found)


@replaces(aten.median.dim)
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Take the middle of a sort, the lower one of two."""
    size = x.shape[dim] if x.ndim else 1
    return aten.kthvalue.default(x, (size + 1) // 2, dim, keepdim)


@replaces(aten.median.default)
def median(x: Tensor) -> Any:
    """Take the middle of all."""
    return x.clone() if not x.ndim else aten.median.dim(x.reshape(-1), 0)[0]


@replaces(aten.searchsorted.Tensor)
def searchsorted(
    steps: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Count the steps before each element."""
    if sorter is not None:
        return NotImplemented
    last = right or side == "right"
    parts = steps if steps.ndim == 1 else steps.unsqueeze(-2)
    before = parts <= x.unsqueeze(-1) if last else parts < x.unsqueeze(-1)
    found = before.to(torch.int64).sum(-1)
    return found.to(torch.int32) if out_int32 else found
