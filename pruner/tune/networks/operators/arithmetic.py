"""Arithmetic of single elements, where TVM drops an argument or lacks integers.

TVM leaves out the factor of ``add(x, y, alpha=2)`` and the scale of SELU, makes infinite bounds of
integers, raises only floats to powers, and has no ``hypot``, ``erfc`` and others.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import by_tvm, converts, replaces
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten


@replaces(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """Multiply the second operand; sums of truth values are their union."""
    if _are_truths(x, y):
        return torch.logical_or(x, _tensor(y)) if alpha else x.clone()
    return NotImplemented if alpha == 1 else x + y * alpha


@replaces(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, y: Any) -> Any:
    """Multiply truth values as a logical and: TVM multiplies numbers."""
    return torch.logical_and(x, _tensor(y)) if _are_truths(x, y) else NotImplemented


@replaces(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: float = 1) -> Any:
    """Multiply the second operand."""
    return NotImplemented if alpha == 1 else x - y * alpha


@replaces(aten.clamp.default)
def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    """Clamp integers without an infinite bound."""
    bounds = [bound for bound in (low, high) if bound is not None]
    if x.dtype.is_floating_point or len(bounds) == 2:
        return NotImplemented
    bound = torch.full((), bounds[0])
    return torch.minimum(x, bound) if low is None else torch.maximum(x, bound)


@replaces(aten._to_copy.default)
def to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Compare with zero to get a truth value: TVM rounds first."""
    if dtype is not torch.bool or x.dtype is torch.bool:
        return NotImplemented
    return x != 0


@replaces(aten.logical_not.default)
def logical_not(x: Tensor) -> Any:
    """Compare numbers with zero: TVM rounds them first."""
    return NotImplemented if x.dtype is torch.bool else x == 0


def _of_truths(operator: Any) -> Any:
    def logical(x: Tensor, y: Tensor) -> Any:
        """Compare numbers with zero: TVM rounds them first."""
        return NotImplemented if _are_truths(x, y) else operator(x != 0, y != 0)

    return logical


for _logical in (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default):
    replaces(_logical)(_of_truths(_logical))


@replaces(aten.elu.default)
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """Scale inputs and outputs."""
    if scale == input_scale == 1:
        return NotImplemented
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


@replaces(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: Any, exponent: Any) -> Any:
    """Raise integers to integers by way of doubles."""
    kinds = [torch.result_type(base, exponent)]
    if kinds[0].is_floating_point:
        return NotImplemented
    found = torch.pow(base.double() if isinstance(base, Tensor) else float(base), exponent.double())
    return found.round().to(kinds[0])


@replaces(aten.exp2.default)
def exp2(x: Tensor) -> Any:
    """Raise two."""
    return torch.pow(2.0, x)


@replaces(aten.erfc.default)
def erfc(x: Tensor) -> Any:
    """Subtract the error function from 1."""
    return 1 - torch.erf(x)


@replaces(aten.frac.default)
def frac(x: Tensor) -> Any:
    """Subtract the whole part."""
    return x - torch.trunc(x)


@replaces(aten.hypot.default)
def hypot(x: Tensor, y: Tensor) -> Any:
    """Take the root of the sum of squares."""
    return torch.sqrt(x * x + y * y)


@replaces(aten.copysign.Tensor)
def copysign(x: Tensor, y: Tensor) -> Any:
    """Choose the sign; the reciprocal of -0.0 is below zero."""
    return torch.where((y < 0) | (1 / y < 0), -torch.abs(x), torch.abs(x))


@replaces(aten.copysign.Scalar)
def copysign_scalar(x: Tensor, y: float) -> Any:
    """Choose the sign of a number."""
    return -torch.abs(x) if math.copysign(1, y) < 0 else torch.abs(x)


@replaces(aten.fmax.default)
def fmax(x: Tensor, y: Tensor) -> Any:
    """Take the other number where an operand is NaN."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y)))


@replaces(aten.fmin.default)
def fmin(x: Tensor, y: Tensor) -> Any:
    """Take the other number where an operand is NaN."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y)))


@replaces(aten.logaddexp.default)
def logaddexp(x: Tensor, y: Tensor) -> Any:
    """Take the greater number out of the exponential; equal infinities have no difference."""
    found = torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y)))
    return torch.where(x == y, x + math.log(2), found)


@replaces(aten.rrelu_with_noise_functional.default)
def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any
) -> Any:
    """Use the mean slope, as torch does outside training."""
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


@converts(
    *(aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar),
    *(aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar),
)
def shift(node: Any, importer: Any) -> Any:
    """Emit a shift by a constant; as a factor it may overflow."""
    op, emit = load_tvm().relax.op, importer.block_builder.emit
    x, places = importer.retrieve_args(node)
    kind, name = node.meta["val"].dtype, node.target.__name__
    left, bits = "lshift" in name or "left" in name, torch.iinfo(kind).bits
    dtype = importer._convert_data_type(kind)
    if places >= bits and (left or not kind.is_signed):
        return emit(op.zeros_like(x))
    places = load_tvm().relax.const(min(places, bits - 1), dtype)
    return emit((op.left_shift if left else op.right_shift)(x, places))


@converts(aten.div.Tensor_mode)
def divide(node: Any, importer: Any) -> Any:
    """Emit a division that is rounded."""
    relax, emit = load_tvm().relax, importer.block_builder.emit
    value = node.meta["val"]
    dtype = importer._convert_data_type(value.dtype)
    x, y = (
        part if isinstance(part, relax.Expr) else relax.const(part, dtype)
        for part in importer.retrieve_args(node)[:2]
    )
    how = node.kwargs.get("rounding_mode")
    if how == "floor":
        return emit(relax.op.floor_divide(x, y))
    divided = relax.op.divide(x, y)  # of integers: without the remainder
    return emit(
        relax.op.trunc(divided) if how == "trunc" and value.is_floating_point() else divided
    )


@converts(aten.arange.start_step, aten.linspace.default, aten.eye.default, aten.eye.m)
def constant(node: Any, importer: Any) -> Any:
    """Compute constants by torch: TVM's last number of a range may be missing."""
    if node.all_input_nodes:
        return by_tvm(node, importer)
    dtype = importer._convert_data_type(node.meta["val"].dtype)
    found = node.target(*node.args, **{**node.kwargs, "device": "cpu"})
    return importer.block_builder.emit(load_tvm().relax.const(found.numpy(), dtype))


def _are_truths(x: Any, y: Any) -> bool:
    return torch.result_type(x, y) is torch.bool


def _tensor(part: Any) -> Tensor:
    return part if isinstance(part, Tensor) else torch.full((), part)
