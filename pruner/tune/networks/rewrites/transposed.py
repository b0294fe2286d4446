"""Rewrite transposed convolutions as plain convolutions without products by zero.

A transposed convolution of stride ``s`` puts ``s - 1`` zeros between neighbouring pixels, and most
of its products are by them. The outputs whose coordinates are equal modulo ``s`` see the same
weights, every ``s``-th; so one convolution of the given pixels with ``s s`` times as many channels
computes all of them, and a shuffle puts them into place (Shi et al., 2016, section 3.2).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.rewrites.operators import is_constant, operators_of, rewritten
from pruner.tune.tvm_import import load_tvm

_TRANSPOSED = "relax.nn.conv2d_transpose"
_LAYOUTS = {"NCHW": "OIHW", "NHWC": "HWIO"}


def subpixel_convolutions(module: Any) -> Any:
    """Rewrite ``conv2d_transpose(x, w)`` with constant weights in a Relax module."""
    if _TRANSPOSED not in operators_of(module):
        return module
    relax = load_tvm().relax
    dpl = relax.dpl
    data, weight = dpl.wildcard(), dpl.is_const()
    pattern = dpl.is_op(_TRANSPOSED)(data, weight)

    def rewrite(_: Any, found: Any) -> Any:
        call = found[pattern]
        if not is_subpixel(call):
            return call
        return _subpixel(relax, call, found[data], found[weight].value.numpy())

    return relax.transform.DeadCodeElimination()(rewritten(module, pattern, rewrite))


def is_subpixel(call: Any) -> bool:
    """True for a transposed convolution that is rewritten.

    Its weights are constant, ungrouped and undilated, and the shuffle has enough outputs.
    """
    attrs, weight = call.attrs, call.args[1]
    known = attrs.data_layout in _LAYOUTS and attrs.kernel_layout == "IOHW"
    if not known or not is_constant(weight):
        return False
    if int(attrs.groups) != 1 or any(int(d) != 1 for d in attrs.dilation):
        return False
    kernel, after = list(weight.ty.shape)[2:], list(attrs.padding)[2:]
    sizes = zip(kernel, attrs.strides, after, attrs.output_padding, strict=True)
    return all(int(more) - int(cut) <= -int(k) % int(s) for k, s, cut, more in sizes)


def phase_weights(
    weights: NDArray[Any], strides: tuple[int, int], *, channels_last: bool
) -> NDArray[Any]:
    """Convert a transposed convolution's weights [i, o, kh, kw] to plain weights.

    Output channels are (phase of y, phase of x, o) in HWIO and (o, phase of y, phase of x) in OIHW.
    """
    inputs, outputs, *sizes = weights.shape
    taps = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    whole = [tap * stride - size for tap, stride, size in zip(taps, strides, sizes, strict=True)]
    padded = np.pad(weights, ((0, 0), (0, 0), (0, whole[0]), (0, whole[1])))
    split = padded.reshape(inputs, outputs, taps[0], strides[0], taps[1], strides[1])
    # a transposed convolution correlates with flipped weights
    split = split[:, :, ::-1, :, ::-1, :]
    if channels_last:
        moved = split.transpose(2, 4, 0, 3, 5, 1)
        return np.ascontiguousarray(moved.reshape(*taps, inputs, -1))
    return np.ascontiguousarray(split.transpose(1, 3, 5, 0, 2, 4).reshape(-1, inputs, *taps))


def _subpixel(relax: Any, call: Any, data: Any, weights: NDArray[Any]) -> Any:
    attrs, last = call.attrs, str(call.attrs.data_layout) == "NHWC"
    strides = (int(attrs.strides[0]), int(attrs.strides[1]))
    top, left, bottom, right = map(int, attrs.padding)
    batch, *_ = (int(extent) for extent in data.ty.shape)
    first = 1 if last else 2  # the dimension of the rows
    size = [int(data.ty.shape[first]), int(data.ty.shape[first + 1])]
    outputs, *kernel = weights.shape[1:]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    rows, columns = (n + tap - 1 for n, tap in zip(size, taps, strict=True))
    begin = [top, left]
    end = [
        (n - 1) * s + k - after + int(more)
        for n, s, k, after, more in zip(
            size, strides, kernel, (bottom, right), attrs.output_padding, strict=True
        )
    ]
    layout = str(attrs.data_layout)
    constant = phase_weights(weights, strides, channels_last=last)
    out = relax.op.nn.conv2d(
        data,
        relax.const(constant, str(constant.dtype)),
        padding=[taps[0] - 1, taps[1] - 1] * 2,
        data_layout=layout,
        kernel_layout=_LAYOUTS[layout],
        out_dtype=attrs.out_dtype,
    )
    if last:
        phases, order = [rows, columns, *strides, outputs], (0, 1, 3, 2, 4, 5)
        shape = [batch, rows * strides[0], columns * strides[1], outputs]
    else:
        phases, order = [outputs, *strides, rows, columns], (0, 1, 4, 2, 5, 3)
        shape = [batch, outputs, rows * strides[0], columns * strides[1]]
    # stride 1: one phase, nothing to shuffle
    if strides != (1, 1):
        out = relax.op.permute_dims(relax.op.reshape(out, [batch, *phases]), order)
        out = relax.op.reshape(out, shape)
    if begin == [0, 0] and end == [rows * strides[0], columns * strides[1]]:
        return out
    return relax.op.strided_slice(out, [first, first + 1], begin, end)
