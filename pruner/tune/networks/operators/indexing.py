"""Elements by numbers, lists and masks, and joined tensors: ``x[-1]``, ``x[i, j] = v``.

TVM reads outside the tensor for a negative index, crosses lists of two dimensions with each other
instead of pairing them, and writes only with an index for every dimension. Here all indexed
dimensions become one, whose index is computed, so one gather or one scatter remains. TVM's
``scatter_elements`` adds, multiplies and compares, but takes only as many new values as indices,
and its indices must reach over the whole of every other dimension.
"""

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import REPLACED, converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
_LONG_NAMES = {"add": "sum", "multiply": "prod"}  # of the older `scatter(reduce=...)`
_MODES = ("sum", "mean", "amax")  # of bags

REPLACED.update(
    {
        aten.select.int: lambda x, dim, index: (
            NotImplemented if index >= 0 else aten.select.int(x, dim, index + x.shape[dim])
        ),
        aten.index_select.default: lambda x, dim, index: (
            NotImplemented if index.ndim else x.index_select(dim, index.reshape(1))
        ),
        aten.scatter.src: lambda x, dim, index, src: _fitted(aten.scatter.src, x, dim, index, src),
        aten.scatter.value: lambda x, dim, index, value: aten.scatter.src(
            x, dim, index, _full(x, index, value)
        ),
        aten.scatter.reduce: lambda x, dim, index, src, *, reduce: aten.scatter_reduce.two(
            x, dim, index, src, _LONG_NAMES[reduce]
        ),
        aten.scatter.value_reduce: lambda x, dim, index, value, *, reduce: aten.scatter_reduce.two(
            x, dim, index, _full(x, index, value), _LONG_NAMES[reduce]
        ),
        aten.scatter_add.default: lambda x, dim, index, src: aten.scatter_reduce.two(
            x, dim, index, src, "sum"
        ),
    }
)


def _full(x: Tensor, index: Tensor, value: float) -> Tensor:
    return torch.full(index.shape, value, dtype=x.dtype)


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
    given = torch.broadcast_tensors(*(part for part in indices if part is not None))
    for dim, part in zip(dims, given, strict=True):
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
    if any(one is not None for one in others) or (before and values.numel() != 1):
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


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in indices)


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


@replaces(aten.slice_scatter.default)
def slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Begin and end inside the tensor."""
    begin, behind, _ = slice(start, end, step).indices(x.shape[dim])
    if begin >= behind:
        return x.clone()
    if (start, end) == (begin, behind):
        return NotImplemented
    return aten.slice_scatter.default(x, src, dim, begin, behind, step)


@replaces(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Gather all rows and scatter them to their bags."""
    bags = offsets.shape[0] - include_last_offset
    begun = torch.arange(indices.shape[0])[:, None] >= offsets[:bags]
    bag = begun.to(torch.int64).sum(1) - 1
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    # what is left out goes to a bag behind the others
    kept = bag if padding_idx < 0 else torch.where(indices == padding_idx, bags, bag)
    places = kept[:, None].expand(rows.shape)
    empty = torch.zeros(bags + 1, rows.shape[1], dtype=rows.dtype)
    found = empty.scatter_reduce(0, places, rows, _MODES[mode], include_self=False)
    return found[:bags], bag, torch.zeros_like(offsets), torch.zeros_like(offsets)


def _fitted(operator: Any, x: Tensor, dim: int, index: Tensor, src: Tensor, *more: Any) -> Any:
    """Cut what is written, and what is written to, to the indices."""
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
