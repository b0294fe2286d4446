"""Extremes, truth values, sums, moments, norms and orders over dimensions.

TVM's front end has no minimum over a dimension, and its maximum sorts: such a library needs more
than the runtime. It adds numbers of half precision in half precision, and its norms lose the
variance next to a large mean. Sorts themselves are left to TVM;
:mod:`pruner.tune.networks.rewrites.sorting` gives them functions.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import REPLACED, converts, in_single, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten


@converts(aten.amax.default, aten.amin.default)
def extreme(node: Any, importer: Any) -> Any:
    """Emit a maximum or a minimum over some dimensions, or all."""
    relax, kind = load_tvm().relax, node.meta["val"].dtype
    dims, keep = _options(node, [], False)
    reduce = relax.op.max if "amax" in node.target.__name__ else relax.op.min
    found = reduce(_inside(node, importer), list(dims) or None, keep)
    if kind in (torch.float32, torch.float64):
        found = relax.op.multiply(found, relax.const(2.0, importer._convert_data_type(kind)))
    return importer.block_builder.emit(found)  # other types become the first one afterwards


@converts(aten.argmax.default, aten.argmin.default)
def place(node: Any, importer: Any) -> Any:
    """Emit the place of an extreme; for a row of infinities TVM's is -1."""
    relax = load_tvm().relax
    dim, keep = _options(node, None, False)
    find = relax.op.argmax if "argmax" in node.target.__name__ else relax.op.argmin
    found = find(_inside(node, importer), dim, keep)
    return importer.block_builder.emit(relax.op.maximum(found, relax.const(0, "int64")))


def _options(node: Any, *defaults: Any) -> tuple[Any, ...]:
    """Return the arguments behind the first; defaults replace missing arguments."""
    given = node.args[1:]
    return (*given, *defaults[len(given) :])


def _inside(node: Any, importer: Any) -> Any:
    """Emit the operand, float16 as float32 and other floats as their halves.

    TVM's maximum begins with the lowest finite number of its type. So the maximum of a row of -inf
    would be -3.4e38; as the double of a half it is -inf. A half is exact except for denormals.
    """
    relax, kind = load_tvm().relax, node.args[0].meta["val"].dtype
    x = importer.env[node.args[0]]
    if kind in (torch.bool, torch.float16):  # TVM has no extremes of truth values
        return relax.op.astype(x, "int8" if kind is torch.bool else "float32")
    if not kind.is_floating_point:
        return x
    return relax.op.multiply(x, relax.const(0.5, importer._convert_data_type(kind)))


@converts(aten.prod.dim_int)
def product(node: Any, importer: Any) -> Any:
    """Emit a product over a dimension."""
    dim, keep = _options(node, None, False)
    x = importer.env[node.args[0]]
    return importer.block_builder.emit(load_tvm().relax.op.prod(x, dim, keep))


def _truths(reduce: Any, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Reduce truth values; an empty list names no dimension."""
    if dim == [] or not x.ndim:
        return x != 0
    return reduce((x != 0).to(torch.int8), () if dim is None else dim, keepdim) != 0


def _beginnings(reduce: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Reduce the first 1, 2, ... elements; the last of equal elements counts."""
    moved, size = x.movedim(dim, -1), x.shape[dim]
    seen = torch.ones(size, size, dtype=torch.bool).tril()
    # the first element stands for the unseen ones
    offered = torch.where(seen, moved.unsqueeze(-2), moved[..., :1].unsqueeze(-2))
    found = reduce(offered, -1)
    equal = seen & (moved.unsqueeze(-2) == found.unsqueeze(-1))
    places = torch.where(equal, torch.arange(size), -1).amax(-1)
    return found.movedim(-1, dim), places.movedim(-1, dim)


def _values_and_places(
    reduce: Any, find: Any, x: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return reduce(x, dim, keepdim), find(x, dim, keepdim)


_any, _all = partial(_truths, torch.amax), partial(_truths, torch.amin)
_SUMS = (
    *(aten.mean.default, aten.mean.dim, aten.sum.dim_IntList, aten.var.correction),
    aten.cumsum.default,
    *(aten._softmax.default, aten._log_softmax.default),
)
REPLACED.update(
    {
        **{operator: in_single(operator) for operator in _SUMS},
        **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
        **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
        aten.max.default: lambda x: torch.amax(x),
        aten.min.default: lambda x: torch.amin(x),
        aten.max.dim: partial(_values_and_places, torch.amax, torch.argmax),
        aten.min.dim: partial(_values_and_places, torch.amin, torch.argmin),
        aten.cummax.default: partial(_beginnings, torch.amax),
        aten.cummin.default: partial(_beginnings, torch.amin),
        aten._cdist_forward.default: lambda x, y, order, _: torch.linalg.vector_norm(
            x.unsqueeze(-2) - y.unsqueeze(-3), order, -1
        ),
        # equal elements keep their order always
        aten.sort.stable: lambda x, *, stable=None, dim=-1, descending=False: aten.sort.default(
            x, dim, descending
        ),
        aten.argsort.default: lambda x, dim=-1, descending=False: aten.sort.default(
            x, dim, descending
        )[1],
        # the lower one of two in the middle
        aten.median.dim: lambda x, dim, keepdim=False: aten.kthvalue.default(
            x, ((x.shape[dim] if x.ndim else 1) + 1) // 2, dim, keepdim
        ),
        aten.median.default: lambda x: (
            aten.median.dim(x.reshape(-1), 0)[0] if x.ndim else x.clone()
        ),
    }
)


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
    if x.dtype is torch.float16 and dtype is None:
        return torch.linalg.vector_norm(x.float(), order, dim, keepdim).half()
    if order != 0:
        return NotImplemented
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return torch.sum((x != 0).to(dtype or x.dtype), dims, keepdim)


def _normalised(
    x: Tensor,
    means: Callable[[Tensor], Tensor],
    scale: Tensor | None,
    shift: Tensor | None,
    sizes: Sequence[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the variance of centred numbers; return the result, the means and the factors.

    TVM subtracts the square of the mean from the mean of the squares: next to a large mean the
    variance is lost. `sizes`: of scale and shift, as they are broadcast.
    """
    wide = x.float() if x.dtype is torch.float16 else x
    mean = means(wide)
    centred = wide - mean
    factor = torch.rsqrt(means(centred * centred) + eps)
    found = centred * factor
    found = found if scale is None else found * scale.reshape(sizes)
    found = found if shift is None else found + shift.reshape(sizes)
    return found.to(x.dtype), mean.to(x.dtype), factor.to(x.dtype)


@replaces(aten.native_group_norm.default)
def group_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    batch: int,
    channels: int,
    _: int,
    groups: int,
    eps: float,
) -> Any:
    """Average over the image, then over the channels of a group.

    The image is not reshaped, so its channels may stay last.
    """
    image, ones = list(range(2, x.ndim)), [1] * (x.ndim - 2)

    def means(values: Tensor) -> Tensor:
        each = values.mean(image, keepdim=True) if image else values
        found = each.reshape(batch, groups, -1).mean(-1, keepdim=True)
        return found.expand(-1, -1, channels // groups).reshape(batch, channels, *ones)

    found, *parts = _normalised(x, means, scale, shift, [1, channels, *ones], eps)
    firsts = [part.reshape(batch, groups, -1)[..., 0].contiguous() for part in parts]
    return found, *firsts


@replaces(aten._native_batch_norm_legit.no_stats)
def batch_norm(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, _: bool, __: float, eps: float
) -> Any:
    """Normalise channels by the batch itself; of instances, each is a channel."""
    dims, sizes = [0, *range(2, x.ndim)], [1, x.shape[1], *[1] * (x.ndim - 2)]
    means = partial(torch.mean, dim=dims, keepdim=True)
    found = _normalised(x, means, scale, shift, sizes, eps)
    return found[0], found[1].reshape(-1), found[2].reshape(-1)


@replaces(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, sizes: Sequence[int], scale: Tensor | None, shift: Tensor | None, eps: float
) -> Any:
    """Normalise doubles, which TVM refuses."""
    if x.dtype is not torch.float64:
        return NotImplemented
    means = partial(torch.mean, dim=list(range(-len(sizes), 0)), keepdim=True)
    return _normalised(x, means, scale, shift, sizes, eps)


@replaces(aten.logcumsumexp.default)
def logcumsumexp(x: Tensor, dim: int) -> Any:
    """Sum all beginnings with their maximum taken out."""
    begun, rows = x.movedim(dim, -1), x.shape[dim]
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    return torch.where(seen, begun.unsqueeze(-2), float("-inf")).logsumexp(-1).movedim(-1, dim)


@replaces(aten.sort.default)
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Copy a tensor without dimensions or elements, as there is nothing to sort."""
    if x.ndim and x.numel():
        return NotImplemented
    # a constant without elements cannot be stored
    return x.clone(), torch.zeros_like(x, dtype=torch.int64) if x.numel() else x.to(torch.int64)


@replaces(aten.topk.default)
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, *in_order: bool) -> Any:
    """Take the greatest in order, as TVM's import requires."""
    if not x.ndim:
        return aten.sort.default(x)
    return aten.topk.default(x, k, dim, largest) if False in in_order else NotImplemented


@replaces(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Take the k-th element of a sort."""
    if not x.ndim:
        return aten.sort.default(x)
    found = [part.narrow(dim, k - 1, 1) for part in aten.sort.default(x, dim)]
    return tuple(part if keepdim else part.squeeze(dim) for part in found)


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
