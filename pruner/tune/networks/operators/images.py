"""Pads, images of another size, volumes between their voxels, and regions of images.

TVM computes the scale of a resize from the sizes where torch takes the given one, rounds otherwise
for the nearest pixel, computes every type in float32 and cuts the rest off, and does not smooth
before it shrinks. A resize is linear and separable, so its two matrices are torch's own results for
the unit vectors. Torch has no decomposition of volumes between voxels, nor of regions.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from pruner.tune.networks.operators.registry import REPLACED, by_tvm, converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_BY_TVM = (torch.float32, torch.float16)
_NEAREST = 1  # the other mode of volumes, 0, weighs the voxels around a point
_ZEROS, _BORDER = 0, 1  # outside the volume; 2 reflects

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
    dtype = importer._convert_data_type(exact)
    # two columns, or rows: of one, torch's smoothing computes wrong numbers
    high = torch.eye(rows, dtype=exact)[None, :, :, None].repeat(1, 1, 1, 2)
    wide = torch.eye(columns, dtype=exact)[None, :, None].repeat(1, 1, 2, 1)
    down = resize(high, [height, 2], corners, scales[0], None)
    across = resize(wide, [2, width], corners, None, scales[1])
    # of each unit vector [vector, pixel]
    left, right = down[0, :, :, 0].T.contiguous(), across[0, :, 0].contiguous()
    x = importer.env[node.args[0]]
    if kind is not exact:
        x = relax.op.astype(x, dtype)
    left, right = (relax.const(part.numpy(), dtype) for part in (left, right))
    product = relax.op.matmul(relax.op.matmul(left, x), right)
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        half = relax.const(0.5, dtype)
        product = relax.op.floor(relax.op.add(product, half))  # 2.5 becomes 3
        product = relax.op.clip(product, limits.min, limits.max)
    return importer.block_builder.emit(product)  # its type becomes the image's afterwards


@replaces(aten.grid_sampler_3d.default)
def grid_sampler_3d(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    """Gather the eight voxels around each point, or the nearest.

    x [batch, channel, depth, height, width]; grid [batch, three dimensions, 3]: across first.
    """
    sizes = x.shape[2:]
    places = [_place(grid[..., 2 - dim], size, padding, corners) for dim, size in enumerate(sizes)]
    if mode == _NEAREST:
        return _voxels(x, [place.round() for place in places])
    below = [place.floor() for place in places]
    total: Any = 0
    for upper in product((0, 1), repeat=3):
        parts = [place - first for place, first in zip(places, below, strict=True)]
        share = reduce(
            torch.mul, [part if one else 1 - part for part, one in zip(parts, upper, strict=True)]
        )
        index = [first + one for first, one in zip(below, upper, strict=True)]
        total = total + _voxels(x, index, share)
    return total


@converts("roi_align.default")  # of torchvision
def roi_align(node: Any, importer: Any) -> Any:
    """Emit TVM's, which shifts boxes before it scales them."""
    relax, emit = load_tvm().relax, importer.block_builder.emit
    image, boxes, scale, height, width, ratio, aligned = importer.retrieve_args(node)
    kind = boxes.ty.dtype.dtype
    # the first column has the number of the image
    boxes = relax.op.multiply(boxes, relax.const([1.0] + [scale] * 4, kind))
    if aligned:
        boxes = relax.op.subtract(boxes, relax.const([0.0] + [0.5] * 4, kind))
    found = relax.op.vision.roi_align(
        image, emit(boxes), (height, width), 1.0, sample_ratio=ratio, aligned=aligned
    )
    return emit(found)


def _place(points: Tensor, size: int, padding: int, corners: bool) -> Tensor:
    """Convert points from -1 to 1 to numbers of voxels.

    ``corners``: the ends are the centres of the outer voxels, else their outer faces.
    """
    place = (points + 1) * ((size - 1) / 2 if corners else size / 2) - (0 if corners else 0.5)
    if padding == _ZEROS:
        return place
    if padding != _BORDER:
        low, span = (0.0, size - 1) if corners else (-0.5, size)
        if not span:
            return torch.zeros_like(place)
        # there and back again
        along = (place - low).abs().fmod(2 * span)
        place = low + torch.where(along > span, 2 * span - along, along)
    return place.clamp(0, size - 1)


def _voxels(x: Tensor, index: Sequence[Tensor], share: Tensor | None = None) -> Tensor:
    """Gather voxels [batch, channel, ...] by whole numbers; outside they are 0.

    ``share`` [batch, ...]: a factor of each; for infinite points it is NaN.
    """
    sizes, flat = x.shape[2:], torch.zeros_like(index[0], dtype=torch.int64)
    are_inside = [(one >= 0) & (one < size) for one, size in zip(index, sizes, strict=True)]
    inside = reduce(torch.logical_and, are_inside)
    for place, size in zip(index, sizes, strict=True):
        flat = flat * size + torch.where(inside, place, 0).to(torch.int64)
    rows = flat.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    found = x.flatten(2).gather(2, rows).unflatten(2, flat.shape[1:])
    if share is not None:
        found = found * share.unsqueeze(1)
    return torch.where(inside.unsqueeze(1), found, 0)
