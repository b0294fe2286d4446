"""Volumes at points between their voxels, and regions of images.

Torch has no decomposition of these operators.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_NEAREST = 1  # the other mode of volumes, 0, weighs the voxels around a point
_ZEROS, _BORDER = 0, 1  # outside the volume; 2 reflects


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
