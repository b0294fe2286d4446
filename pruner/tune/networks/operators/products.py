"""Products in other types than float32, and of three tensors.

TVM's front end makes float32 numbers of every product: whole numbers above 2**24 lose digits, and a
bias of half precision cannot be added.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import REPLACED, converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_EXACT = (torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@converts(aten.mm.default, aten.bmm.default)
def product(node: Any, importer: Any) -> Any:
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
    spread = torch.nn.functional.pad(_spread(x, stride), around)
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
    filled = torch.nn.functional.pad(apart, gaps)
    whole = filled.reshape(*front, *(n * s for n, s in zip(sizes, stride, strict=True)))
    for dim, (size, step) in enumerate(zip(sizes, stride, strict=True), start=len(front)):
        whole = whole.narrow(dim, 0, (size - 1) * step + 1)
    return whole
