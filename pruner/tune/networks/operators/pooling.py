"""Pools of signals, images and volumes.

TVM ignores a divisor, and counts windows that hang over the edge in its own way. It adds numbers of
half precision in half precision. The places of maxima are zeros in its import.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pruner.tune.networks.operators.registry import REPLACED, in_single, replaces

aten = torch.ops.aten


class Windows(NamedTuple):
    """The windows along a dimension.

    ``reach``: elements that a window covers, gaps included. ``behind``: how many elements must
    follow so that the last window is complete. ``drops``: torch leaves a last window out, which
    begins behind the tensor.
    """

    size: int
    reach: int
    stride: int
    before: int
    gap: int
    behind: int
    drops: bool


def windows(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Windows]:
    """Return the windows along each dimension, by the arguments of torch's pools."""
    dims, found = len(kernel), []
    given = (stride or kernel, padding, dilation)
    options = (list(part) * (dims if len(part) == 1 else 1) for part in given)
    for size, extent, step, before, gap in zip(x.shape[-dims:], kernel, *options, strict=True):
        reach = (extent - 1) * gap + 1
        whole = size + 2 * before - reach
        last = -(-whole // step) if ceil_mode else whole // step
        drops = last * step >= size + before
        behind = (last - drops) * step + reach - size - before
        found.append(Windows(size, reach, step, before, gap, behind, drops))
    return found


@replaces(aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    """Divide the sums of windows by torch's counts."""
    dims = len(kernel)
    pool = aten.avg_pool2d.default if dims == 2 else aten.avg_pool3d.default
    if x.dtype is torch.float16:
        return in_single(pool)(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    if not ceil_mode and divisor is None:
        return NotImplemented
    parts = windows(x, kernel, stride, padding, ceil_mode=ceil_mode)
    around = [amount for part in reversed(parts) for amount in (part.before, part.behind)]

    def sums(values: Tensor) -> Tensor:
        return pool(values, list(kernel), [part.stride for part in parts]) * prod(kernel)

    total = sums(functional.pad(x, around))
    if divisor is not None:
        return total / divisor
    if count_include_pad:
        # what lies behind the padding on the right does not count
        counted = torch.ones(1, 1, *(part.size + 2 * part.before for part in parts))
        behind = [n for part in reversed(parts) for n in (0, part.behind - part.before)]
        counts = sums(functional.pad(counted, behind))
    else:
        counts = sums(functional.pad(torch.ones(1, 1, *(part.size for part in parts)), around))
    counts = counts.to(x.dtype)
    return total / (counts if x.ndim == dims + 2 else counts[0])


def pool_with_places(
    x: Tensor, kernel: Sequence[int], *options: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    """Compute a maximum pooling and the places of its maxima."""
    parts = windows(x, kernel, *options, **named)
    sizes = [part.size for part in parts]
    around = [amount for part in reversed(parts) for amount in (part.before, part.behind)]
    low = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    x = functional.pad(x, around, value=low)
    places = functional.pad(torch.arange(prod(sizes)).reshape(sizes), around)
    values, where = [], []
    for offsets in product(*map(range, kernel)):
        window: tuple[Any, ...] = tuple(
            slice(first * one.gap, first * one.gap + extent - one.reach + 1, one.stride)
            for first, one, extent in zip(offsets, parts, places.shape, strict=True)
        )
        values.append(x[(..., *window)])
        where.append(places[window])
    stacked = torch.stack(values, -1)
    best = stacked.argmax(-1, keepdim=True)
    offered = torch.stack(where, -1).expand(stacked.shape)
    return stacked.amax(-1), offered.gather(-1, best).squeeze(-1)


# a stride that is left out is that of the kernel; TVM takes an empty one as it is
REPLACED.update(
    {
        pool: lambda x, kernel, stride=(), *options, pool=pool: (
            NotImplemented if stride else pool(x, kernel, kernel, *options)
        )
        for pool in (
            aten.max_pool2d_with_indices.default,
            aten.max_pool3d_with_indices.default,
        )
    }
)


# used only where the places are read or a window is dropped: TVM's pooling is faster
POOLED_WITH_PLACES: dict[Any, Callable[..., Any]] = {
    aten.max_pool2d_with_indices.default: pool_with_places,
    aten.max_pool3d_with_indices.default: pool_with_places,
}


@replaces(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> Any:
    """Pool windows of equal sizes, or each part by itself."""
    dims = len(sizes)
    given = x.shape[-dims:]
    if all(n % out == 0 for n, out in zip(given, sizes, strict=True)):
        kernel = [n // out for n, out in zip(given, sizes, strict=True)]
        pool = aten.max_pool2d_with_indices if dims == 2 else aten.max_pool3d_with_indices
        return pool.default(x, kernel)
    places = torch.arange(prod(given)).reshape(given).expand(x.shape)
    for dim, out in zip(range(-dims, 0), sizes, strict=True):
        n = x.shape[dim]
        parts = [(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]
        best = [x.narrow(dim, a, b - a).argmax(dim, keepdim=True) + a for a, b in parts]
        found = torch.cat(best, dim)
        x, places = x.gather(dim, found), places.gather(dim, found)
    return x, places
