"""Convert a network to channels last or to half precision, where requested.

Front ends give images as NCHW, whose innermost axis is the width: 14 or 7 pixels fill no vector
register. With channels last a vector is neighbouring output channels of one pixel. In half
precision, products of float16 have sums of float32.
"""

from math import isfinite
from typing import Any, Literal, get_args

from pruner.errors import PrunerError
from pruner.tune.networks.rewrites.constant_folding import fold_transposes
from pruner.tune.networks.rewrites.convolutions import is_subpixel
from pruner.tune.networks.rewrites.operators import operator_name, operators_of, rewritten
from pruner.tune.tvm_import import inside, load_tvm

Layout = Literal["NCHW", "NHWC"]
Precision = Literal["float32", "float16"]
AUTO = "auto"

_TRANSPOSED = "relax.nn.conv2d_transpose"
# transposed convolutions keep IOHW, the layout that `subpixel_convolutions` rewrites
_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "HWIO"], _TRANSPOSED: ["NHWC", "IOHW"]}


def chosen_layout(wanted: str, *, device: str, precision: Precision) -> Layout:
    """Resolve a layout option, including ``auto``, for "cpu" or "cuda".

    ``auto``: channels last on CPUs, and on GPUs for half precision, whose matrix units multiply
    tiles of neighbouring channels; else that of the front end, which needs no transposes. Raises
    `PrunerError`: an unknown layout.
    """
    for layout in get_args(Layout):
        if layout == wanted:
            return layout
    if wanted != AUTO:
        raise PrunerError(f"layout={wanted}: choose {AUTO}, {' or '.join(get_args(Layout))}")
    return "NHWC" if device == "cpu" or precision == "float16" else "NCHW"


def channels_last(module: Any) -> Any:
    """Convert convolutions and their surroundings to NHWC and HWIO.

    A network without them is unchanged. Constants must be folded: scales behind a convolution are
    matched in the order of a front end. Images are transposed at the inputs and outputs; constants
    are transposed here, once.
    """
    if operators_of(module).isdisjoint(_CHANNELS_LAST):
        return module
    passes = load_tvm().relax.transform
    sequential = load_tvm().tvm.transform.Sequential
    steps = [passes.CanonicalizeBindings(), passes.ConvertLayout({}, _wanted)]
    # layout conversion keeps the layout of minimum and maximum, and not that of clip
    return fold_transposes(sequential(steps)(_convertible(without_clips(module))))


def _wanted(call: Any) -> dict[str, list[str]]:
    if operator_name(call) == _TRANSPOSED and not is_subpixel(call):
        # TVM has no program for it with channels last
        return {**_CHANNELS_LAST, _TRANSPOSED: ["NCHW", "IOHW"]}
    return _CHANNELS_LAST


def _convertible(module: Any) -> Any:
    """Rewrite calls that TVM's layout conversion takes wrongly.

    For a negative dimension of ``squeeze`` its rule writes in front of a string, which ends in
    ``std::bad_alloc`` or a crash, and it drops a dimension of more than one element. For a negative
    one of ``permute_dims`` it looks up a letter in vain. The result of ``stack`` gets a letter that
    no later rule finds. A leaky ReLU has no rule, so its image would be transposed twice.
    """
    relax = load_tvm().relax
    dpl, op = relax.dpl, relax.op

    def squeeze(call: Any, data: Any) -> Any:
        sizes = data.ty.shape
        given = [int(axis) for axis in call.attrs.axis or ()]
        places = [axis % len(sizes) for axis in given]
        axes = [place for place in places if int(sizes[place]) == 1]
        return call if axes == given else op.squeeze(data, axes)

    def permute_dims(call: Any, data: Any) -> Any:
        axes = [int(axis) for axis in call.attrs.axes or ()]
        if min(axes, default=0) >= 0:
            return call
        return op.permute_dims(data, [axis % len(axes) for axis in axes])

    def stack(call: Any, data: Any) -> Any:
        axis = int(call.attrs.axis or 0)
        if isinstance(data, relax.Tuple):
            parts = list(data.fields)
        else:
            parts = [relax.TupleGetItem(data, place) for place in range(len(data.ty.fields))]
        return op.concat([op.expand_dims(one, axis) for one in parts], axis)

    def leakyrelu(call: Any, data: Any) -> Any:
        if not 0 <= float(call.attrs.alpha) <= 1:
            return call
        slope = relax.const(float(call.attrs.alpha), str(data.ty.dtype))
        return op.maximum(data, op.multiply(data, slope))

    called = operators_of(module)
    module = module.clone()
    for name, rewrite in {
        "relax.squeeze": squeeze,
        "relax.permute_dims": permute_dims,
        "relax.stack": stack,
        "relax.nn.leakyrelu": leakyrelu,
    }.items():
        if name not in called:
            continue
        one = dpl.is_op(name)(dpl.wildcard())

        def rewritten(_: Any, found: Any, one: Any = one, rewrite: Any = rewrite) -> Any:
            return rewrite(found[one], found[one].args[0])

        module["main"] = dpl.rewrite_call(one, rewritten, module["main"])
    return relax.transform.Normalize()(module)


def without_clips(module: Any, *, integers_only: bool = False) -> Any:
    """Replace ``clip`` by minimum and maximum.

    A front end gives infinity for a missing bound, which is no integer: ``integers_only`` replaces
    ``clip`` of integers alone.
    """
    if "relax.clip" not in operators_of(module):
        return module
    relax = load_tvm().relax
    dpl = relax.dpl
    data, low, high = dpl.wildcard(), dpl.wildcard(), dpl.wildcard()
    clip = dpl.is_op("relax.clip")(data, low, high)

    def rewrite(call: Any, found: Any) -> Any:
        value, dtype = found[data], str(found[data].ty.dtype)
        is_integer = "int" in dtype
        if integers_only and not is_integer:
            return call
        for end, bounded in ((low, relax.op.maximum), (high, relax.op.minimum)):
            bound = found[end].value
            if not is_integer:
                value = bounded(value, relax.const(float(bound), dtype))
            elif isfinite(bound):
                value = bounded(value, relax.const(int(bound), dtype))
        return value

    return rewritten(module, clip, rewrite)


def chosen_precision(wanted: str) -> Precision:
    """Resolve a precision option; raise `PrunerError` if it is unknown."""
    for precision in get_args(Precision):
        if precision == wanted:
            return precision
    raise PrunerError(f"precision={wanted}: choose {' or '.join(get_args(Precision))}")


def mixed(module: Any) -> Any:
    """Convert convolutions and products of a Relax module to float16.

    Their sums are of float32; inputs and outputs of the network stay float32. Raises `PrunerError`:
    a product of doubles or integers, whose sums would be of float32, too.
    """
    relax = load_tvm().relax
    products = [
        call
        for call in inside(module["main"].body, relax.Call)
        if operator_name(call).startswith(("relax.matmul", "relax.nn.conv"))
    ]
    kinds = {str(call.args[0].ty.dtype) for call in products} - {"float32", "float16"}
    if kinds:
        raise PrunerError(
            f"precision=float16: this network has products of {', '.join(sorted(kinds))}, whose "
            "sums would be rounded to float32; choose precision=float32"
        )
    passes = relax.transform
    # out_dtype is the type of the sums: float16 would round each partial sum
    steps = [passes.CanonicalizeBindings(), passes.ToMixedPrecision(out_dtype="float32")]
    return load_tvm().tvm.transform.Sequential(steps)(module)
