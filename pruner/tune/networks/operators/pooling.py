"""Pools of signals, images and volumes.

TVM ignores a divisor, and counts windows that hang over the edge in its own way. The places of
maxima are zeros in its import.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pruner.tune.networks.operators.registry import replaces

aten = torch.ops.aten


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
    if not ceil_mode and divisor is None:
        return NotImplemented
    dims, size = len(kernel), prod(kernel)
    stride, padding = _each(stride or kernel, dims), _each(padding, dims)
    sizes = x.shape[-dims:]
    windows = zip(sizes, kernel, stride, padding, strict=True)
    after = [_length(*window, ceil_mode=ceil_mode) for window in windows]
    around = [
        amount
        for before, behind in zip(reversed(padding), reversed(after), strict=True)
        for amount in (before, behind)
    ]
    pool = aten.avg_pool2d.default if dims == 2 else aten.avg_pool3d.default

    def sums(values: Tensor) -> Tensor:
        return pool(values, list(kernel), list(stride)) * size

    total = sums(functional.pad(x, around))
    if divisor is not None:
        return total / divisor
    if count_include_pad:
        # what lies behind the padding on the right does not count
        counted = torch.ones(1, 1, *(n + 2 * p for n, p in zip(sizes, padding, strict=True)))
        behind = [b - p for p, b in zip(reversed(padding), reversed(after), strict=True)]
        counts = sums(functional.pad(counted, [part for b in behind for part in (0, b)]))
    else:
        counts = sums(functional.pad(torch.ones(1, 1, *sizes), around))
    counts = counts.to(x.dtype)
    return total / (counts if x.ndim == dims + 2 else counts[0])


def pool_with_places(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute a maximum pooling and the places of its maxima."""
    dims = len(kernel)
    stride, padding = _each(stride or kernel, dims), _each(padding, dims)
    dilation, sizes = _each(dilation, dims), x.shape[-dims:]
    places = torch.arange(prod(sizes)).reshape(sizes)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    around: list[int] = []
    out: list[int] = []
    for n, k, s, p in zip(sizes, reach, stride, padding, strict=True):
        behind = _length(n, k, s, p, ceil_mode=ceil_mode)
        around[:0] = [p, behind]
        out.append((n + p + behind - k) // s + 1)
    low = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    x = functional.pad(x, around, value=low)
    places = functional.pad(places, around)
    values, where = [], []
    for offsets in product(*map(range, kernel)):
        window: tuple[Any, ...] = tuple(
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, n, s in zip(offsets, dilation, out, stride, strict=True)
        )
        values.append(x[(..., *window)])
        where.append(places[window])
    stacked = torch.stack(values, -1)
    best = stacked.argmax(-1, keepdim=True)
    offered = torch.stack(where, -1).expand(stacked.shape)
    return stacked.amax(-1), offered.gather(-1, best).squeeze(-1)


def drops_window(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Check for a last window behind the tensor, which torch leaves out."""
    dims = len(kernel)
    sizes, stride = x.shape[-dims:], _each(stride or kernel, dims)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, _each(dilation, dims), strict=True)]
    steps = zip(sizes, reach, stride, _each(padding, dims), strict=True)
    return any(_last_window(*step, ceil_mode=ceil_mode)[1] for step in steps)


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


def _each(given: Sequence[int], dims: int) -> list[int]:
    return list(given) * (dims if len(given) == 1 else 1)


def _length(size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool) -> int:
    """Return how many elements must follow so that the last window is complete."""
    last, dropped = _last_window(size, kernel, stride, padding, ceil_mode=ceil_mode)
    return (last - dropped) * stride + kernel - size - padding


def _last_window(
    size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool
) -> tuple[int, bool]:
    """Return the number of the last window, and whether it begins behind the tensor."""
    whole = size + 2 * padding - kernel
    last = -(-whole // stride) if ceil_mode else whole // stride
    return last, last * stride >= size + padding
