"""Pads, and images of another size.

TVM computes the scale from the sizes where torch takes the given one, rounds otherwise for the
nearest pixel, computes every type in float32 and cuts the rest off, and does not smooth before it
shrinks. A resize is linear and separable, so its two matrices are torch's own results for the unit
vectors.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from pruner.tune.networks.operators.registry import REPLACED, by_tvm, converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_BY_TVM = (torch.float32, torch.float16)

# TVM's own rule of interpolation at points differs, or it lacks some of it
REPLACED.update(
    {
        operator: decomposition_table[operator]
        for operator in (aten.grid_sampler_2d.default, aten.affine_grid_generator.default)
        if operator in decomposition_table
    }
)


@replaces(aten.constant_pad_nd.default)
def pad(x: Tensor, around: Sequence[int], value: float = 0) -> Any:
    """Cut where a pad is negative."""
    if all(amount >= 0 for amount in around):
        return NotImplemented
    for place, (before, after) in enumerate(zip(around[::2], around[1::2], strict=True)):
        dim = x.ndim - 1 - place
        first, cut = max(-before, 0), max(-before, 0) + max(-after, 0)
        x = x.narrow(dim, first, x.shape[dim] - cut)
    kept = [max(amount, 0) for amount in around]
    return aten.constant_pad_nd.default(x, kept, value) if any(kept) else x.clone()


@converts(aten.upsample_nearest2d.vec)
def nearest(node: Any, importer: Any) -> Any:
    """Emit TVM's resize, or gather rows and columns that torch names."""
    given, (*_, height, width) = node.args[0].meta["val"], node.meta["val"].shape
    size, scales = (*node.args[1:], None)[:2]
    if given.dtype in _BY_TVM and _grows_evenly(given, size, scales):
        return by_tvm(node, importer)
    relax, resize = load_tvm().relax, aten.upsample_nearest2d.default
    down, across = scales or (None, None)
    rows, columns = (torch.arange(float(extent)) for extent in given.shape[-2:])
    row = resize(rows[None, None, :, None], [height, 1], down, None).long().flatten()
    column = resize(columns[None, None, None], [1, width], None, across).long().flatten()
    found = relax.op.take(importer.env[node.args[0]], relax.const(row.numpy()), 2)
    return importer.block_builder.emit(relax.op.take(found, relax.const(column.numpy()), 3))


@converts(aten.upsample_bilinear2d.vec)
def bilinear(node: Any, importer: Any) -> Any:
    """Emit TVM's resize, or products with matrices for other scales."""
    x, size, corners, scales = (*node.args, None)[:4]
    given = x.meta["val"]
    evenly = corners or scales is None or _grows_evenly(given, size, scales)
    # TVM divides by zero from corner to corner of a single row or column
    if given.dtype in _BY_TVM and evenly and not (corners and 1 in node.meta["val"].shape[-2:]):
        return by_tvm(node, importer)
    return _by_matrices(node, importer, aten.upsample_bilinear2d.default, scales or (None, None))


@converts(aten.upsample_bicubic2d.vec)
def bicubic(node: Any, importer: Any) -> Any:
    """Emit products with matrices: torch's decomposition gathers 16 pixels for each."""
    scales = (*node.args[3:], None)[0] or (None, None)
    return _by_matrices(node, importer, aten.upsample_bicubic2d.default, scales)


@converts(aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default)
def smoothed(node: Any, importer: Any) -> Any:
    """Emit products with matrices."""
    return _by_matrices(node, importer, node.target, (*node.args[3:], None, None)[:2])


def _grows_evenly(x: Tensor, size: Sequence[int] | None, scales: Sequence[float] | None) -> bool:
    given = x.shape[-2:]
    if scales is not None:
        return all(float(scale).is_integer() for scale in scales)
    return size is not None and all(new % old == 0 for new, old in zip(size, given, strict=True))


def _by_matrices(node: Any, importer: Any, resize: Any, scales: Sequence[float | None]) -> Any:
    relax, value = load_tvm().relax, node.meta["val"]
    (rows, columns), (height, width) = node.args[0].meta["val"].shape[-2:], value.shape[-2:]
    corners, kind = node.args[2], value.dtype
    exact = torch.float64 if kind is torch.float64 else torch.float32
    # two columns, or rows: of one, torch's smoothing computes wrong numbers
    high = torch.eye(rows, dtype=exact)[None, :, :, None].repeat(1, 1, 1, 2)
    wide = torch.eye(columns, dtype=exact)[None, :, None].repeat(1, 1, 2, 1)
    down = resize(high, [height, 2], corners, scales[0], None)
    across = resize(wide, [2, width], corners, None, scales[1])
    # of each unit vector [vector, pixel]
    left, right = down[0, :, :, 0].T.contiguous(), across[0, :, 0].contiguous()
    x = importer.env[node.args[0]]
    if kind is not exact:
        x = relax.op.astype(x, importer._convert_data_type(exact))
    left, right = (
        relax.const(part.numpy(), importer._convert_data_type(exact)) for part in (left, right)
    )
    product = relax.op.matmul(relax.op.matmul(left, x), right)
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        half = relax.const(0.5, importer._convert_data_type(exact))
        product = relax.op.floor(relax.op.add(product, half))  # 2.5 becomes 3
        product = relax.op.clip(product, limits.min, limits.max)
    return importer.block_builder.emit(product)  # its type becomes the image's afterwards
