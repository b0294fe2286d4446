"""Convolutions, pools of signals, images and volumes, and products of matrices.

TVM's front end makes float32 numbers of every product: whole numbers above 2**24 lose digits, and a
bias of half precision cannot be added. Of pools it ignores a divisor, counts windows that hang over
the edge in its own way, adds numbers of half precision in half precision, and makes zeros of the
places of maxima.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pruner.tune.networks.operators.registry import REPLACED, converts, in_single, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_EXACT = (torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@converts(aten.mm.default, aten.bmm.default)
def matrix_product(node: Any, importer: Any) -> Any:
    """Emit a product that keeps doubles and whole numbers."""
    value, relax = node.meta["val"], load_tvm().relax
    exact = value.dtype in _EXACT
    dtype = importer._convert_data_type(value.dtype) if exact else "float32"
    found = relax.op.matmul(*importer.retrieve_args(node), out_dtype=dtype)
    return importer.block_builder.emit(found)


@replaces(aten.addmm.default)
def addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Add to a product of another type by itself."""
    if bias.dtype is torch.float32:
        return NotImplemented
    product = torch.mm(x, y)
    return (bias if beta == 1 else bias * beta) + (product if alpha == 1 else product * alpha)


@converts(aten.convolution.default)
def plain_convolution(node: Any, importer: Any) -> Any:
    """Emit a convolution that keeps doubles and whole numbers; its bias is added elsewhere."""
    value = node.meta["val"]
    if value.dtype not in _EXACT:
        return importer._convolution(node)
    x, weight, _, stride, padding, dilation, transposed, more, groups = importer.retrieve_args(node)
    name = f"conv{value.ndim - 2}d" + ("_transpose" if transposed else "")
    found = getattr(load_tvm().relax.op.nn, name)(
        *(x, weight),
        strides=list(stride),
        padding=list(padding),
        dilation=list(dilation),
        groups=groups,
        out_dtype=importer._convert_data_type(value.dtype),
        **({"output_padding": list(more)} if transposed else {}),
    )
    return importer.block_builder.emit(found)


REPLACED[aten.addbmm.default] = lambda bias, x, y, *, beta=1, alpha=1: (
    bias * beta + torch.bmm(x, y).sum(0) * alpha
)


@replaces(aten._trilinear.default)
def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    dims: Sequence[int],
    _: int = 1,
) -> Any:
    """Sum the products of three tensors (``nn.Bilinear``)."""
    for dim in sorted(expand_x):
        x = x.unsqueeze(dim)
    for dim in sorted(expand_y):
        y = y.unsqueeze(dim)
    for dim in sorted(expand_z):
        z = z.unsqueeze(dim)
    return (x * y * z).sum(list(dims))


@replaces(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Add a bias of another type separately; replace odd transposed convolutions.

    TVM has no transposed convolution of volumes, and none in groups or with gaps in the kernel.
    """
    dims = weight.ndim - 2
    if bias is not None and x.dtype is not torch.float32:
        found = aten.convolution.default(
            x, weight, None, stride, padding, dilation, transposed, output_padding, groups
        )
        return found + bias.reshape(-1, *[1] * dims)
    odd = dims == 3 or groups != 1 or any(step != 1 for step in dilation)
    if not transposed or not odd:
        return NotImplemented
    stride, padding, dilation, more = (
        list(part) * (dims if len(part) == 1 else 1)
        for part in (stride, padding, dilation, output_padding)
    )
    around = [
        amount
        for k, p, d, m in reversed(
            list(zip(weight.shape[2:], padding, dilation, more, strict=True))
        )
        for amount in (d * (k - 1) - p, d * (k - 1) - p + m)
    ]
    spread = functional.pad(_spread(x, stride), around)
    inputs, outputs, *kernel = weight.shape
    plain = weight.reshape(groups, inputs // groups, outputs, *kernel).transpose(1, 2)
    plain = plain.reshape(groups * outputs, inputs // groups, *kernel).flip(
        list(range(2, dims + 2))
    )
    ones, zeros = [1] * dims, [0] * dims
    return aten.convolution.default(
        spread, plain, bias, ones, zeros, dilation, False, zeros, groups
    )


def _spread(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Put ``stride - 1`` zeros between neighbouring elements of a batch of images."""
    if prod(stride) == 1:
        return x
    front, sizes = x.shape[: -len(stride)], x.shape[-len(stride) :]
    apart = x.reshape(*front, *(part for size in sizes for part in (size, 1)))
    gaps = [part for step in reversed(stride) for part in (0, step - 1, 0, 0)]
    filled = functional.pad(apart, gaps)
    whole = filled.reshape(*front, *(n * s for n, s in zip(sizes, stride, strict=True)))
    for dim, (size, step) in enumerate(zip(sizes, stride, strict=True), start=len(front)):
        whole = whole.narrow(dim, 0, (size - 1) * step + 1)
    return whole


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


# by `pool_with_places` where places are read or a window is dropped: TVM is faster otherwise
MAX_POOLS = (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
# a stride that is left out is that of the kernel; TVM takes an empty one as it is
REPLACED.update(
    {
        pool: lambda x, kernel, stride=(), *options, pool=pool: (
            NotImplemented if stride else pool(x, kernel, kernel, *options)
        )
        for pool in MAX_POOLS
    }
)


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
