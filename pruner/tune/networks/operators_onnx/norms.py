"""Normalisations."""

from __future__ import annotations

from typing import Any

from pruner.tune.networks.operators_onnx.tensors import constant, dtype_of, shape_of
from pruner.tune.tvm_import import load_tvm


def rms_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert RMSNormalization of all dimensions, for which TVM makes no program."""
    op, (data, scale) = load_tvm().relax.op, inputs[:2]
    shape = shape_of(data)
    if attrs.get("axis", -1) % len(shape) != 0:
        return None
    row = front.bb.emit(op.reshape(data, [1, -1]))
    weight = front.bb.emit(op.broadcast_to(scale, shape))
    weight = front.bb.emit(op.reshape(weight, [-1]))
    found = front.convert("RMSNormalization", [row, weight], {**attrs, "axis": 1})
    return op.reshape(found, shape)


def lp_normalization(front: Any, inputs: Any, attrs: Any) -> Any:
    """Convert LpNormalization; a vector of zeros stays as it is."""
    op, data, axis = load_tvm().relax.op, inputs[0], attrs.get("axis", -1)
    if attrs.get("p", 2) == 1:
        norm = op.sum(op.abs(data), axis, keepdims=True)
    else:
        norm = op.sqrt(op.sum(op.multiply(data, data), axis, keepdims=True))
    one = constant(1, dtype_of(data))
    return op.divide(data, op.where(op.equal(norm, constant(0, dtype_of(data))), one, norm))


CONVERTERS = {"LpNormalization": lp_normalization, "RMSNormalization": rms_normalization}
