"""Orders: sort, the greatest k, medians and places in a sorted list.

TVM calls a sort that its runtime library lacks. Here the rank of an element is the number of
elements before it: comparisons that any library computes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import replaces

aten = torch.ops.aten

_LONGEST = 4096  # elements that are all compared with each other
_MOST = 16  # greatest elements of longer dimensions that are taken one by one


@replaces(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Put every element at its rank; equal elements keep their order."""
    if x.ndim == 0 or x.shape[dim] > _LONGEST:
        return NotImplemented
    moved, size = x.movedim(dim, -1), x.shape[dim]
    one, other = moved.unsqueeze(-1), moved.unsqueeze(-2)
    earlier = torch.ones(size, size, dtype=torch.bool).tril(-1)
    before = (other > one if descending else other < one) | ((other == one) & earlier)
    rank = before.to(torch.int64).sum(-1)
    places = torch.arange(size).expand(moved.shape)
    order = torch.zeros_like(rank).scatter(-1, rank, places)
    return moved.gather(-1, order).movedim(-1, dim), order.movedim(-1, dim)


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
    """Take the first of a sort; of a long dimension, one at a time."""
    if x.ndim == 0:
        return NotImplemented
    if x.shape[dim] <= _LONGEST:
        values, places = aten.sort.default(x, dim, largest)
        return values.narrow(dim, 0, k), places.narrow(dim, 0, k)
    if k > _MOST or not x.dtype.is_floating_point:
        return aten.topk.default(x, k, dim, largest) if False in in_order else NotImplemented
    found, rest, bound = [], x, float("-inf" if largest else "inf")
    for _ in range(k):
        take = torch.argmax if largest else torch.argmin
        place = take(rest, dim, keepdim=True)
        found.append(place)
        rest = rest.scatter(dim, place, bound)
    places = torch.cat(found, dim)
    return x.gather(dim, places), places


@replaces(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Take one of a sort."""
    found = [part.narrow(dim, k - 1, 1) for part in aten.sort.default(x, dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in found)


@replaces(aten.median.dim)
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Take the middle of a sort, the lower one of two."""
    return aten.kthvalue.default(x, (x.shape[dim] + 1) // 2, dim, keepdim)


@replaces(aten.median.default)
def median(x: Tensor) -> Any:
    """Take the middle of all."""
    return aten.median.dim(x.reshape(-1), 0)[0]


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
