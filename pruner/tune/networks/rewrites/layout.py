"""Convert a network to channels last, where requested.

Front ends give images as NCHW, whose innermost axis is the width: 14 or 7 pixels fill no vector
register. With channels last a vector is neighbouring output channels of one pixel.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pruner.errors import PrunerError
from pruner.tune.networks.rewrites.constant_folding import fold_transposes
from pruner.tune.networks.rewrites.precision import Precision
from pruner.tune.tvm_import import load_tvm

Layout = Literal["NCHW", "NHWC"]
AUTO = "auto"

# transposed convolutions keep IOHW, the layout that `subpixel_convolutions` rewrites
_CHANNELS_LAST = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NHWC", "IOHW"],
}


def chosen_layout(wanted: str, *, device: str, precision: Precision) -> Layout:
    """Resolve a layout option, including ``auto``, for "cpu" or "cuda".

    ``auto``: channels last on CPUs, and on GPUs for half precision, whose matrix units multiply
    tiles of neighbouring channels; else that of the front end, which needs no transposes.

    Raises:
        PrunerError: an unknown layout.
    """
    for layout in get_args(Layout):
        if layout == wanted:
            return layout
    if wanted != AUTO:
        raise PrunerError(f"layout={wanted}: choose {AUTO}, {' or '.join(get_args(Layout))}")
    return "NHWC" if device == "cpu" or precision == "float16" else "NCHW"


def channels_last(module: Any) -> Any:
    """Convert convolutions and their surroundings to NHWC and HWIO.

    Constants must be folded: scales behind a convolution are matched in the order of a front end.
    Images are transposed at the inputs and outputs; constants are transposed here, once.
    """
    passes = load_tvm().relax.transform
    sequential = load_tvm().tvm.transform.Sequential
    steps = [passes.CanonicalizeBindings(), passes.ConvertLayout(_CHANNELS_LAST)]
    return fold_transposes(sequential(steps)(_without_clips(module)))


def _without_clips(module: Any) -> Any:
    """Replace ``clip`` by minimum and maximum, which layout conversion supports."""
    relax = load_tvm().relax
    dpl = relax.dpl
    data, low, high = dpl.wildcard(), dpl.wildcard(), dpl.wildcard()
    clip = dpl.is_op("relax.clip")(data, low, high)

    def rewrite(_: Any, found: Any) -> Any:
        dtype = found[data].ty.dtype
        least, most = (relax.const(float(found[end].value), str(dtype)) for end in (low, high))
        return relax.op.minimum(relax.op.maximum(found[data], least), most)

    module = module.clone()
    module["main"] = dpl.rewrite_call(clip, rewrite, module["main"])
    return relax.transform.Normalize()(module)
