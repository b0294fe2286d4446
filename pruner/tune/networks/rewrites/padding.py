"""Fill a classifier's channels up to complete vectors, where it is cheap.

Vectors run over neighbouring output channels, and tiles of them fill the registers. SqueezeNet ends
in a convolution to 1,000 channels, averaged over the image: 1,000 is 8 x 125, so tiles have 8 or 40
channels, too few or too many for 13 rows of 13 pixels. The best of 134 programs of it reached 155
GFLOP/s, its neighbours 310. Filled up with weights of zero to 1,024 it performs like these; the
additional channels are cut off behind the average, where they are a few numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pruner.tune.networks.rewrites.operators import rewritten
from pruner.tune.tvm_import import load_tvm

_WIDTHS = (32, 16)  # of packed weights (`packing`): whole vectors
_MOST = 0.05  # share of additional arithmetic


def pad_classifier(module: Any) -> Any:
    """Fill up averaged convolutions of a Relax module with channels last."""
    relax = load_tvm().relax
    dpl = relax.dpl
    data, weight, bias = dpl.wildcard(), dpl.is_const(), dpl.is_const()
    product = dpl.is_op("relax.nn.conv2d")(data, weight)
    of_image = dpl.is_op("relax.reshape")(bias, dpl.wildcard())
    of_pixels = dpl.is_op("relax.permute_dims")(of_image)
    active = dpl.is_op("relax.nn.relu")(dpl.is_op("relax.add")(product, of_pixels))
    pattern = dpl.is_op("relax.mean")(active)

    def rewrite(call: Any, found: Any) -> Any:
        outputs = int(found[weight].ty.shape[-1])
        padded = padded_size(outputs)
        # the average must keep the channels, or zeros would change its value
        if padded is None or not _is_plain(found[product]) or not _keeps_channels(call):
            return call
        weights, shifts = (_filled(relax, found[part], padded) for part in (weight, bias))
        shifts = relax.op.reshape(shifts, (1, 1, 1, padded))
        convolution = found[product]
        wide = relax.Call(convolution.op, [found[data], weights], convolution.attrs)
        averaged = relax.Call(call.op, [relax.op.nn.relu(relax.op.add(wide, shifts))], call.attrs)
        return relax.op.strided_slice(averaged, [-1], [0], [outputs])

    return rewritten(module, pattern, rewrite)


def padded_size(outputs: int) -> int | None:
    """Return the number of channels to compute, None: no change."""
    if any(outputs % width == 0 for width in _WIDTHS):
        return None
    sizes = (-(-outputs // width) * width for width in _WIDTHS)
    return next((size for size in sizes if size <= (1 + _MOST) * outputs), None)


def _is_plain(convolution: Any) -> bool:
    attrs = convolution.attrs
    return (attrs.data_layout, attrs.kernel_layout, int(attrs.groups)) == ("NHWC", "HWIO", 1)


def _keeps_channels(mean: Any) -> bool:
    """Check that a mean of four dimensions excludes the last."""
    axes = mean.attrs.axis
    return axes is not None and all(int(axis) % 4 != 3 for axis in axes)


def _filled(relax: Any, constant: Any, size: int) -> Any:
    values = constant.value.numpy()
    behind = [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])]
    return relax.const(np.pad(values, behind), str(values.dtype))
