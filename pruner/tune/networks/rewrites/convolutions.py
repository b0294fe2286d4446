"""Convolve signals as images, and transposed convolutions without products by zero.

``conv1d`` of [n, c, w] becomes ``conv2d`` of [n, c, 1, w], so that its weights are packed, and so
do transposed convolutions. The operators around them take the image, too, where they can: a view
between two convolutions would end the function that is fused there.
:mod:`~pruner.tune.networks.rewrites.constant_folding` then folds norms of signals like norms of
images.

A transposed convolution of stride ``s`` puts ``s - 1`` zeros between neighbouring pixels, and most
of its products are by them. The outputs whose coordinates are equal modulo ``s`` see the same
weights, every ``s``-th; so one convolution of the given pixels with ``s s`` times as many channels
computes all of them, and a shuffle puts them into place (Shi et al., 2016, section 3.2).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.rewrites.operators import (
    is_constant,
    operator_name,
    operators_of,
    rewritten,
    shape_of,
    with_bindings,
)
from pruner.tune.tvm_import import load_tvm

_ROW = 2  # the place of the new dimension
_BEGIN = ("relax.nn.conv1d", "relax.nn.conv1d_transpose")
_NAMES = {
    "relax.nn.conv1d": "conv2d",
    "relax.nn.conv1d_transpose": "conv2d_transpose",
    "relax.nn.max_pool1d": "max_pool2d",
    "relax.nn.avg_pool1d": "avg_pool2d",
}
# Elementwise operators with attributes; the others have none.
_ELEMENTWISE = ("relax.astype", "relax.nn.leakyrelu", "relax.nn.prelu", "relax.nn.softplus")
_TRANSPOSED = "relax.nn.conv2d_transpose"
_LAYOUTS = {"NCHW": "OIHW", "NHWC": "HWIO"}


def one_row(module: Any) -> Any:
    """Rewrite convolutions of signals with constant weights in a Relax module."""
    relax = load_tvm().relax
    if operators_of(module).isdisjoint(_BEGIN):
        return module
    module = relax.transform.Normalize()(module)
    module = module.clone()
    module["main"] = with_bindings(module["main"], _Rows(relax).rewritten)
    # signals whose image alone is read, and reshaped constants
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(module))


class _Rows:
    """The images that stand for signals, by the hash of their variables."""

    def __init__(self, relax: Any) -> None:
        self._relax, self._builder = relax, relax.BlockBuilder()
        self._images: dict[int, Any] = {}
        self._constants: dict[int, Any] = {}  # values of reshaped constants, such as a bias
        self._new: list[Any] = []

    def rewritten(self, bindings: Any, variable: Any) -> list[Any]:
        """Return the bindings of a block with images in front of their signals."""
        relax, self._new, self._variable = self._relax, [], variable
        for binding in bindings:
            value = binding.value
            image = self._image_of(value)
            if image is None:
                if operator_name(value) == "relax.reshape" and is_constant(value.args[0]):
                    values = value.args[0].value.numpy().reshape(shape_of(binding.var))
                    self._constants[hash(binding.var)] = values
                self._new.append(binding)
                continue
            image = self._emit(image)
            rank = len(shape_of(binding.var))
            if rank == _ROW + 2:  # an image itself
                self._new.append(relax.VarBinding(binding.var, image))
                continue
            self._images[hash(binding.var)] = image
            if rank == _ROW + 1:
                signal = relax.op.squeeze(image, [_ROW])
                self._new.append(relax.VarBinding(binding.var, signal))
            else:  # a tuple, whose parts are squeezed
                self._new.append(binding)
        return self._new

    def _image_of(self, value: Any) -> Any | None:
        relax, name = self._relax, operator_name(value)
        if isinstance(value, relax.TupleGetItem):
            parts = self._images.get(hash(value.tuple_value))
            # means of a norm are no signals
            is_signal = parts is not None and len(shape_of(value)) == _ROW + 1
            return relax.TupleGetItem(parts, value.index) if is_signal else None
        if not isinstance(value, relax.Call):
            return None
        if name in _BEGIN:
            return self._convolved(value, name)
        if name == "relax.squeeze" and _is_row(value.args[0], value.attrs.axis):
            return value.args[0]
        if name == "relax.concat":
            return self._joined(value)
        known = [one for one in value.args if hash(one) in self._images]
        if not known:
            return None
        if name == "relax.expand_dims" and _is_row(value, value.attrs.axis):
            return self._images[hash(known[0])]
        if name in _NAMES:
            return self._pooled(value, name)
        data, attrs = self._images[hash(known[0])], value.attrs
        if name == "relax.nn.batch_norm" and int(attrs.axis) == 1:
            return relax.Call(value.op, [data, *value.args[1:]], attrs)
        if name == "relax.split":
            sections = attrs.indices_or_sections
            sections = int(sections) if hasattr(sections, "value") else [int(s) for s in sections]
            return relax.op.split(data, sections, _axis(attrs.axis))
        if name == "relax.nn.group_norm" and [int(axis) for axis in attrs.axes] == [2]:
            norm = (int(attrs.num_groups), int(attrs.channel_axis), [_ROW, _ROW + 1])
            how = (float(attrs.epsilon), bool(attrs.center), bool(attrs.scale))
            return relax.op.nn.group_norm(data, *value.args[1:], *norm, *how)
        same = isinstance(value.ty, relax.TensorType) and shape_of(value) == shape_of(known[0])
        tensors = all(isinstance(one.ty, relax.TensorType) for one in value.args)
        if same and tensors and (attrs is None or name in _ELEMENTWISE):
            return relax.Call(value.op, [self._image(one) for one in value.args], attrs)
        return None

    def _convolved(self, call: Any, name: str) -> Any | None:
        relax, attrs = self._relax, call.attrs
        data, weight = call.args
        if not is_constant(weight) or attrs.data_layout != "NCW":
            return None
        more = {}
        if name.endswith("transpose"):
            more["output_padding"] = [0, int(attrs.output_padding[0])]
        return getattr(relax.op.nn, _NAMES[name])(
            self._image(data),
            self._image(weight),
            strides=[1, int(attrs.strides[0])],
            padding=_padding(attrs),
            dilation=[1, int(attrs.dilation[0])],
            groups=int(attrs.groups),
            out_dtype=attrs.out_dtype,
            **more,
        )

    def _joined(self, call: Any) -> Any | None:
        fields = getattr(call.args[0], "fields", ())
        if not any(hash(one) in self._images for one in fields):
            return None
        return self._relax.op.concat([self._image(one) for one in fields], _axis(call.attrs.axis))

    def _pooled(self, call: Any, name: str) -> Any:
        attrs = call.attrs
        return getattr(self._relax.op.nn, _NAMES[name])(
            self._image(call.args[0]),
            pool_size=[1, int(attrs.pool_size[0])],
            strides=[1, int(attrs.strides[0])],
            padding=_padding(attrs),
            dilation=[1, int(attrs.dilation[0])],
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
        )

    def _image(self, value: Any) -> Any:
        """Return a value with the dimension of the row added."""
        relax, known = self._relax, self._images.get(hash(value))
        if known is not None:
            return known
        if not isinstance(value.ty, relax.TensorType) or len(shape_of(value)) < _ROW:
            return value
        place = len(shape_of(value)) - 1
        constant = self._constants.get(hash(value))
        if is_constant(value):
            constant = value.value.numpy()
        if constant is None:
            return self._emit(relax.op.expand_dims(value, [place]))
        shape = (*constant.shape[:place], 1, *constant.shape[place:])
        return relax.const(constant.reshape(shape), str(constant.dtype))

    def _emit(self, value: Any) -> Any:
        value = self._builder.normalize(value)
        variable = self._variable("row", value.ty)
        self._new.append(self._relax.VarBinding(variable, value))
        return variable


def _axis(axis: Any) -> int:
    """Return the dimension of an image that a signal's dimension becomes."""
    place = int(axis or 0) % (_ROW + 1)
    return place + (place >= _ROW)


def _is_row(image: Any, axes: Any) -> bool:
    """True for a tensor [n, c, 1, w] and the dimension of its row."""
    shape = shape_of(image)
    places = [int(axis) % len(shape) for axis in axes or ()]
    return len(shape) == _ROW + 2 and shape[_ROW] == 1 and places == [_ROW]


def _padding(attrs: Any) -> list[int]:
    left, right = (int(attrs.padding[0]), int(attrs.padding[-1]))
    return [0, left, 0, right]


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
    batch, *_ = shape_of(data)
    first = 1 if last else 2  # the dimension of the rows
    size = shape_of(data)[first : first + 2]
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
