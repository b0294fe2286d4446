"""Elements by numbers, lists and masks, and joined tensors: ``x[-1]``, ``x[i, j] = v``.

TVM reads outside the tensor for a negative index, crosses lists of two dimensions with each other
instead of pairing them, and writes only with an index for every dimension. Here all indexed
dimensions become one, whose index is computed, so one gather or one scatter remains.
"""

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import REPLACED, replaces

aten = torch.ops.aten


REPLACED[aten.select.int] = lambda x, dim, index: (
    NotImplemented if index >= 0 else aten.select.int(x, dim, index + x.shape[dim])
)
REPLACED[aten.index_select.default] = lambda x, dim, index: (
    NotImplemented if index.ndim else x.index_select(dim, index.reshape(1))
)


@replaces(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Leave out empty lists, which torch allows beside tensors of any rank."""
    kept = [one for one in tensors if one.shape != (0,)]
    if len(kept) in (0, len(tensors)):
        return NotImplemented
    kind = reduce(torch.promote_types, [one.dtype for one in tensors])
    return torch.cat([one.to(kind) for one in kept], dim)


@replaces(aten.unfold.default)
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Any:
    """Gather windows of a dimension; their elements become the last dimension."""
    dim = dimension % x.ndim
    windows = torch.arange((x.shape[dim] - size) // step + 1, device=x.device)[:, None] * step
    places = windows + torch.arange(size, device=x.device)
    found = x.index_select(dim, places.reshape(-1))
    return found.unflatten(dim, (len(windows), size)).movedim(dim + 1, -1)


@replaces(aten.as_strided.default)
def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Gather elements by one computed index."""
    if not x.is_contiguous() or x.storage_offset():
        return NotImplemented  # strides of memory that this tensor does not show
    places = torch.full((), storage_offset or 0, dtype=torch.int64, device=x.device)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + step * torch.arange(extent, device=x.device)
    return x.reshape(-1).index_select(0, places.reshape(-1)).reshape(list(size))


@replaces(aten.index.Tensor)
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Gather by one computed index."""
    if _has_mask(indices):
        return NotImplemented  # as many elements as the mask is true: no fixed shape
    merged, at, flat, _ = _merged(x, indices)
    found = merged.index_select(at, flat.reshape(-1))
    return found.reshape(*merged.shape[:at], *flat.shape, *merged.shape[at + 1 :])


@replaces(aten.index_put.default)
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """Scatter by one computed index; a mask selects between old and new values."""
    if _has_mask(indices):
        return _put_by_mask(x, indices, values, accumulate)
    merged, at, flat, order = _merged(x, indices)
    before, after = merged.shape[:at], merged.shape[at + 1 :]
    new = values.to(x.dtype).expand(*before, *flat.shape, *after)
    shape = (*before, flat.numel(), *after)
    places = flat.reshape(-1, *[1] * len(after)).expand(shape)
    scatter = torch.scatter_add if accumulate else torch.scatter
    written = scatter(merged, at, places, new.reshape(shape))
    back = [order.index(dim) for dim in range(x.ndim)]
    return written.reshape([x.shape[dim] for dim in order]).permute(back)


@replaces(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Count the places where the mask is true: each takes the next element."""
    mask = mask.expand(x.shape)
    turn = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    found = source.reshape(-1).index_select(0, turn.clamp(0, source.numel() - 1))
    return torch.where(mask, found.reshape(x.shape), x)


def _merged(
    x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[Tensor, int, Tensor, Sequence[int]]:
    """Merge the indexed dimensions.

    Returns the tensor, the merged dimension, its index and the order of the dimensions before.
    """
    dims = [dim for dim, part in enumerate(indices) if part is not None]
    rest = [dim for dim in range(x.ndim) if dim not in dims]
    # torch puts the elements first where dimensions without an index lie between
    at = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    order = [*rest[:at], *dims, *rest[at:]]
    flat: Any = 0
    for dim, part in zip(dims, torch.broadcast_tensors(*filter(_given, indices)), strict=True):
        size = x.shape[dim]
        flat = flat * size + torch.where(part < 0, part + size, part)
    shape = [x.shape[dim] for dim in rest]
    shape.insert(at, prod(x.shape[dim] for dim in dims))
    return x.permute(order).reshape(shape), at, flat, order


def _put_by_mask(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Any:
    """Write one row where a mask is true, or the next row every time."""
    before = next(place for place, part in enumerate(indices) if part is not None)
    mask, *others = indices[before:]
    assert mask is not None
    if any(map(_given, others)) or (before and values.numel() != 1):
        told = "index_put.default (a mask behind or among other indices)"
        raise AssertionError(f"Unsupported function types ['{told}']")
    behind = x.ndim - before - mask.ndim
    everywhere = mask.reshape(*[1] * before, *mask.shape, *[1] * behind)
    if values.numel() == 1:
        values = values.reshape(())
    elif values.ndim > behind and values.shape[0] != 1:
        turn = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
        rows = values.expand(-1, *x.shape[mask.ndim :])
        values = rows.index_select(0, turn.clamp(0, values.shape[0] - 1)).reshape(x.shape)
    elif values.ndim > behind:
        values = values[0]
    new = values.to(x.dtype)
    return torch.where(everywhere, x + new if accumulate else new, x)


def _given(part: Tensor | None) -> bool:
    return part is not None


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in indices)
