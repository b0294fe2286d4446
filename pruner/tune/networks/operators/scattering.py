"""Writes at indexed places: sums, products, means and extremes; bags of embeddings.

TVM's ``scatter_elements`` adds, multiplies and compares, but takes only as many new values as
indices, and its indices must reach over the whole of every other dimension.
"""

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
