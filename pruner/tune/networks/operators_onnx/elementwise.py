"""Constants, clips, minima and maxima of several tensors, powers, normalisations.

TVM's converters emit TIR functions for clips, through which no layout passes, and stack the tensors
of a minimum to reduce them.
"""

from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np

from pruner.tune.networks.operators_onnx.recurrent import Emitter
from pruner.tune.networks.rewrites.operators import (
    array,
    constant,
    dtype_of,
    is_constant,
    is_float,
    shape_of,
)
from pruner.tune.tvm_import import load_tvm


def clip(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Clip; bounds are attributes before opset 11, and may be left out."""
    op, data = load_tvm().relax.op, inputs[0]
    low, high = inputs[1], inputs[2]
    if "min" in attrs:
        low = constant(attrs["min"], dtype_of(data))
    if "max" in attrs:
        high = constant(attrs["max"], dtype_of(data))
    if is_float(data) and all(bound is None or is_constant(bound) for bound in (low, high)):
        bounds = [np.nan if bound is None else array(bound, "").item() for bound in (low, high)]
        # a bound of NaN is none
        least, most = (
            float(end if np.isnan(bound) else bound)
            for bound, end in zip(bounds, (-np.inf, np.inf), strict=True)
        )
        if least <= most:
            return op.clip(data, least, most)
    data = data if low is None else op.maximum(data, low)
    return data if high is None else op.minimum(data, high)


def power(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Pow of integers, or with an exponent of another type."""
    op, (base, exponent) = load_tvm().relax.op, inputs[:2]
    if is_float(base):
        return op.power(base, _as(op, exponent, dtype_of(base)))
    wide = op.power(_as(op, base, "float64"), _as(op, exponent, "float64"))
    rounded = op.round(wide) if not is_float(exponent) else wide
    return op.astype(rounded, dtype_of(base))


def is_infinite(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert IsInf, perhaps of a single sign."""
    op, data = load_tvm().relax.op, inputs[0]
    zero, found = constant(0, dtype_of(data)), op.isinf(data)
    if not attrs.get("detect_negative", 1):
        found = op.logical_and(found, op.greater(data, zero))
    if not attrs.get("detect_positive", 1):
        found = op.logical_and(found, op.less(data, zero))
    return found


def _as(op: Any, tensor: Any, dtype: str) -> Any:
    if dtype_of(tensor) == dtype:
        return tensor
    if is_constant(tensor):
        return constant(array(tensor, "").astype(dtype), dtype)
    return op.astype(tensor, dtype)


def _pairwise(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    return reduce(getattr(load_tvm().relax.op, name), inputs)


def mean(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Mean of several tensors."""
    op = load_tvm().relax.op
    total = front.bb.normalize(reduce(op.add, inputs))
    return op.divide(total, constant(len(inputs), dtype_of(total)))


def extreme_of_truths(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert ReduceMax or ReduceMin of truth values, which TVM cannot compare."""
    op, data = load_tvm().relax.op, inputs[0]
    if dtype_of(data) != "bool":
        return None
    numbers = front.bb.normalize(op.astype(data, "int8"))
    found = front.convert(name, [numbers, *inputs[1:]], attrs)
    return op.astype(found, "bool")


def constant_of(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Constant, whose value may be a list of numbers."""
    (name, value) = next(item for item in attrs.items() if item[0].startswith("value"))
    if name == "value":
        return None
    return constant(value, "int64" if "int" in name else "float32")


def in_float32(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert an operator of halves, whose sums lose most of many numbers."""
    op, kind = load_tvm().relax.op, dtype_of(inputs[0])
    if kind not in _HALVES:
        return None
    wide = [
        front.bb.normalize(_as(op, one, "float32")) if one is not None and is_float(one) else one
        for one in inputs
    ]
    return op.astype(front.convert(name, wide, attrs), kind)


def rectified(name: str, front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Elu, Selu or ThresholdedRelu, for which TVM has constants of float32 alone."""
    op, data = load_tvm().relax.op, inputs[0]
    if dtype_of(data) != "float64":
        return in_float32(name, front, inputs, attrs)
    alpha, gamma = (
        constant(attrs.get(key, usual), "float64")
        for key, usual in zip(("alpha", "gamma"), _RECTIFIED[name], strict=True)
    )
    zero, one = (constant(number, "float64") for number in (0, 1))
    if name == "ThresholdedRelu":
        return op.where(op.greater(data, alpha), data, zero)
    below = op.multiply(alpha, op.subtract(op.exp(data), one))
    return op.multiply(gamma, op.where(op.greater(data, zero), data, below))


def local_response_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert LRN; TVM's has odd sizes of float32 images and signals alone."""
    op, size, kind = Emitter(front), attrs["size"], dtype_of(inputs[0])
    shape = shape_of(inputs[0])
    if kind == "float32" and size % 2 and len(shape) in (3, 4):
        return None
    wide = kind if kind == "float64" else "float32"
    data = _as(op, inputs[0], wide)
    around = [0, 0, (size - 1) // 2, size // 2, *[0] * (2 * len(shape) - 4)]
    squares = op.pad(op.multiply(data, data), around)
    total = reduce(
        op.add, (op.strided_slice(squares, [1], [i], [i + shape[1]]) for i in range(size))
    )
    alpha, beta, bias = (
        constant(attrs.get(name, usual), wide)
        for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    scale = op.add(bias, op.multiply(total, op.divide(alpha, constant(size, wide))))
    return _as(op, op.divide(data, op.power(scale, beta)), kind)


def dropout(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert Dropout to nothing; TVM's pair of results keeps an image in its layout."""
    data, ratio, trains = (inputs[i] for i in range(3))
    drops = ratio is None or not is_constant(ratio) or array(ratio, "").item() > 0
    if trains is not None and drops and array(trains, "training_mode").item():
        raise ValueError("it drops elements (training_mode); export in evaluation mode")
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return data
    kept = constant(np.ones(shape_of(data)), "bool")
    return load_tvm().relax.Tuple([data, kept])


def layer_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert LayerNormalization; TVM normalises as many dimensions as the scale has."""
    op, (data, scale, bias) = load_tvm().relax.op, (inputs[i] for i in range(3))
    sizes = shape_of(data)[attrs.get("axis", -1) % len(shape_of(data)) :]
    if all(part is None or shape_of(part) == sizes for part in (scale, bias)):
        return None
    ones = constant(np.ones(sizes), dtype_of(scale))
    found = front.convert("LayerNormalization", [data, ones], attrs)
    scaled = op.multiply(front.bb.emit(load_tvm().relax.TupleGetItem(found, 0)), scale)
    return scaled if bias is None else op.add(scaled, bias)


def mean_variance_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert MeanVarianceNormalization, whose divisor is never zero in ONNX."""
    op, kind = load_tvm().relax.op, dtype_of(inputs[0])
    axes, wide = list(attrs.get("axes", (0, 2, 3))), "float64" if kind == "float64" else "float32"
    data = front.bb.normalize(_as(op, inputs[0], wide))
    centred = front.bb.emit(op.subtract(data, op.mean(data, axes, keepdims=True)))
    variance = op.mean(op.multiply(centred, centred), axes, keepdims=True)
    deviation = op.add(op.sqrt(variance), constant(1e-9, wide))
    return _as(op, front.bb.normalize(op.divide(centred, deviation)), kind)


def rms_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert RMSNormalization of all dimensions, or with a scale of other sizes."""
    op, (data, scale) = load_tvm().relax.op, inputs[:2]
    shape = shape_of(data)
    axis = attrs.get("axis", -1) % len(shape)
    if axis and shape_of(scale) == shape[axis:]:
        return None
    rows = front.bb.emit(op.reshape(data, [-1, prod(shape[axis:])]))
    ones = constant(np.ones(prod(shape[axis:])), dtype_of(scale))
    found = front.convert("RMSNormalization", [rows, ones], {**attrs, "axis": 1})
    return op.multiply(op.reshape(found, shape), scale)


def lp_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert LpNormalization; a vector of zeros stays as it is."""
    op, kind, axis = Emitter(front), dtype_of(inputs[0]), attrs.get("axis", -1)
    wide = "float64" if kind == "float64" else "float32"
    data = _as(op, inputs[0], wide)
    if attrs.get("p", 2) == 1:
        norm = op.sum(op.abs(data), axis, keepdims=True)
    else:
        norm = op.sqrt(op.sum(op.multiply(data, data), axis, keepdims=True))
    norm = op.where(op.equal(norm, constant(0, wide)), constant(1, wide), norm)
    return _as(op, op.divide(data, norm), kind)


_HALVES = ("float16", "bfloat16")
# alpha and gamma
_RECTIFIED = {
    "Elu": (1.0, 1.0),
    "Selu": (1.67326319217681884765625, 1.05070102214813232421875),
    "ThresholdedRelu": (1.0, 1.0),
}
_SUMS = (
    *("GlobalAveragePool", "GlobalLpPool", "InstanceNormalization", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare"),
)

CONVERTERS: dict[str, Any] = {
    **{name: partial(rectified, name) for name in _RECTIFIED},
    **{name: partial(in_float32, name) for name in _SUMS},
    "Clip": clip,
    "Constant": constant_of,
    "Dropout": dropout,
    "IsInf": is_infinite,
    "LRN": local_response_normalization,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "Max": partial(_pairwise, "maximum"),
    "Mean": mean,
    "MeanVarianceNormalization": mean_variance_normalization,
    "Min": partial(_pairwise, "minimum"),
    "Pow": power,
    "RMSNormalization": rms_normalization,
    "ReduceMax": partial(extreme_of_truths, "ReduceMax"),
    "ReduceMin": partial(extreme_of_truths, "ReduceMin"),
    "Sum": partial(_pairwise, "add"),
}
