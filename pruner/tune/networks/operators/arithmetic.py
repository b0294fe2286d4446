"""Arithmetic of single elements, where TVM drops an argument or lacks integers.

TVM leaves out the factor of ``add(x, y, alpha=2)`` and the scale of SELU, makes infinite bounds of
integers, raises only floats to powers, rounds a quotient before its floor, loses small numbers in
``log1p`` and ``expm1``, cannot lower a constant that is not finite, and has no ``hypot``, ``erfc``
and others. Torch does not decompose rounding to steps: fake quantisation of networks that were
trained for it, and the operators that exports for quantisation (PT2E) put around others.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import (
    REPLACED,
    by_tvm,
    converts,
    in_single,
    replaces,
)
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten

_LOGICAL = (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
_LIBRARY = "quantized_decomposed"  # torch loads it only where it is used


def _are_truths(x: Any, y: Any) -> bool:
    return torch.result_type(x, y) is torch.bool


def _tensor(part: Any) -> Tensor:
    return part if isinstance(part, Tensor) else torch.full((), part)


def _wide(operator: Any, x: Any, y: Any) -> Any:
    """Compute with a number that half precision lacks: TVM rounds it first."""
    number = y if isinstance(x, Tensor) else x
    if torch.result_type(x, y) is not torch.float16 or isinstance(number, Tensor):
        return NotImplemented
    if not number or 2**-14 <= abs(number) <= 65504 or not math.isfinite(number):
        return NotImplemented
    wide = (part.float() if isinstance(part, Tensor) else part for part in (x, y))
    return operator(*wide).half()


def _of_truths(operator: Any) -> Any:
    """Compare numbers with zero: TVM rounds them first."""
    return lambda x, y: NotImplemented if _are_truths(x, y) else operator(x != 0, y != 0)


REPLACED.update(
    {
        aten.atanh.default: lambda x: (torch.log1p(x) - torch.log1p(-x)) / 2,  # exact near zero
        # in C, `~` of a truth value is always true
        aten.bitwise_not.default: lambda x: (
            torch.logical_not(x) if x.dtype is torch.bool else NotImplemented
        ),
        # the reciprocal of -0.0 is below zero
        aten.copysign.Tensor: lambda x, y: torch.where(
            (y < 0) | (1 / y < 0), -torch.abs(x), torch.abs(x)
        ),
        aten.copysign.Scalar: lambda x, y: (
            -torch.abs(x) if math.copysign(1, y) < 0 else torch.abs(x)
        ),
        aten.erfc.default: lambda x: 1 - torch.erf(x),
        aten.exp2.default: lambda x: torch.pow(2.0, x),
        # the other number where an operand is NaN
        aten.fmax.default: lambda x, y: torch.where(
            x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y))
        ),
        aten.fmin.default: lambda x, y: torch.where(
            x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y))
        ),
        aten.fmod.Tensor: in_single(aten.fmod.Tensor),  # CUDA has none of half precision
        aten.fmod.Scalar: lambda x, y: (
            torch.fmod(x, torch.full((), y, dtype=x.dtype))
            if x.dtype is torch.float16
            else NotImplemented
        ),
        aten.frac.default: lambda x: x - torch.trunc(x),
        aten.full_like.default: lambda x, value, *, dtype=None, **_: (
            NotImplemented
            if abs(value) < math.inf  # not of NaN
            else torch.full(x.shape, value, dtype=dtype or x.dtype)
        ),
        aten.hypot.default: lambda x, y: torch.sqrt(x * x + y * y),
        aten.logical_not.default: lambda x: NotImplemented if x.dtype is torch.bool else x == 0,
        **{operator: _of_truths(operator) for operator in _LOGICAL},
        # TVM cannot compare truth values
        **dict.fromkeys(
            (aten.ne.Tensor, aten.ne.Scalar),
            lambda x, y: torch.logical_xor(x, _tensor(y)) if _are_truths(x, y) else NotImplemented,
        ),
        **dict.fromkeys(
            (aten.eq.Tensor, aten.eq.Scalar),
            lambda x, y: torch.logical_not(x != y) if _are_truths(x, y) else NotImplemented,
        ),
    }
)


@replaces(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """Multiply the second operand; sums of truth values are their union."""
    if _are_truths(x, y):
        return torch.logical_or(x, _tensor(y)) if alpha else x.clone()
    return NotImplemented if alpha == 1 else x + y * alpha


@replaces(aten.mul.Tensor, aten.mul.Scalar)
def mul(x: Any, y: Any) -> Any:
    """Multiply truth values as a logical and: TVM multiplies numbers."""
    if _are_truths(x, y):
        return torch.logical_and(x, _tensor(y))
    return _wide(torch.mul, x, y)


@replaces(aten.sub.Tensor, aten.sub.Scalar)
def sub(x: Any, y: Any, alpha: float = 1) -> Any:
    """Multiply the second operand."""
    return NotImplemented if alpha == 1 else x - y * alpha


@replaces(aten.div.Tensor, aten.div.Scalar)
def div(x: Any, y: Any) -> Any:
    """Divide numbers of half precision by others."""
    return _wide(torch.div, x, y)


@replaces(aten.clamp.default)
def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    """Clamp integers without an infinite bound; the upper of two crossed bounds counts."""
    bounds = [bound for bound in (low, high) if bound is not None]
    if x.dtype.is_floating_point and len(bounds) == 2 and bounds[0] > bounds[1]:
        return torch.full_like(x, bounds[1])
    if x.dtype.is_floating_point or len(bounds) == 2:
        return NotImplemented
    bound = torch.full((), bounds[0], dtype=torch.result_type(x, bounds[0]))
    return torch.minimum(x, bound) if low is None else torch.maximum(x, bound)


@replaces(aten.clamp.Tensor)
def clamp_by_tensors(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Broadcast bounds and numbers: TVM takes bounds as large as the numbers at most."""
    found = x if low is None else torch.maximum(x, low)
    return found if high is None else torch.minimum(found, high)


def _are_apart(x: Tensor, y: Any) -> Tensor:
    """Return true where zero lies between two numbers."""
    if isinstance(y, Tensor):
        return torch.where(y < 0, -x, x) < 0
    return x > 0 if y < 0 else x < 0


@replaces(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(x: Any, y: Any) -> Any:
    """Compute a remainder with the sign of `y` from the exact remainder of floats."""
    kind = torch.result_type(x, y)
    if not isinstance(x, Tensor):
        return torch.remainder(torch.full((), x, dtype=kind), y)
    if not kind.is_floating_point:
        return NotImplemented
    rest = torch.fmod(x, y)
    return torch.where(_are_apart(rest, y), rest + y, rest)


@replaces(aten.div.Tensor_mode)
def floor_divide(x: Any, y: Any, *, rounding_mode: str | None) -> Any:
    """Divide floats without their exact remainder, as torch does."""
    kind = torch.result_type(x, y)
    if rounding_mode != "floor" or not kind.is_floating_point:
        return NotImplemented
    if not isinstance(x, Tensor):
        x = torch.full((), x, dtype=kind)
    if kind is torch.float16:
        single = y.float() if isinstance(y, Tensor) else y
        return torch.div(x.float(), single, rounding_mode="floor").half()
    rest = torch.fmod(x, y)
    whole = (x - rest) / y
    whole = torch.where(_are_apart(rest, y), whole - 1, whole)
    found = torch.floor(whole)
    found = torch.where(whole - found > 0.5, found + 1, found)
    return torch.where(y == 0, x / y, found) if isinstance(y, Tensor) else found


@replaces(aten.log1p.default)
def log1p(x: Tensor) -> Tensor:
    """Add what the sum with one rounded away, times the slope of the logarithm."""
    whole = x + 1
    found, kept = torch.log(whole), whole - 1
    return torch.where(kept == x, found, found + (x - kept) / whole)


@replaces(aten.expm1.default)
def expm1(x: Tensor) -> Tensor:
    """Add what the rounded power lost, times the slope of the power."""
    power = torch.exp(x)
    found = power - 1
    return torch.where(torch.abs(x) < 1, found + power * (x - torch.log(power)), found)


@replaces(aten._to_copy.default)
def to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Compare with zero to get a truth value: TVM rounds first."""
    if dtype is not torch.bool or x.dtype is torch.bool:
        return NotImplemented
    return x != 0


@replaces(aten.elu.default)
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """Scale inputs and outputs."""
    if scale == input_scale == 1:
        return NotImplemented
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


@replaces(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(base: Any, exponent: Any) -> Any:
    """Raise integers to integers by way of doubles."""
    kind = torch.result_type(base, exponent)
    if kind.is_floating_point:
        return NotImplemented
    found = torch.pow(base.double() if isinstance(base, Tensor) else float(base), exponent.double())
    return found.round().to(kind)


@replaces(aten.logaddexp.default)
def logaddexp(x: Tensor, y: Tensor) -> Any:
    """Take the greater number out of the exponential; equal infinities have no difference."""
    found = torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y)))
    return torch.where(x == y, x + math.log(2), found)


@replaces(aten.rrelu_with_noise_functional.default)
def rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> Any:
    """Use the mean slope, as torch does outside training."""
    if training:
        return NotImplemented
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
    if places >= bits and (left or not kind.is_signed):
        return emit(op.zeros_like(x))
    dtype = importer._convert_data_type(kind)
    places = load_tvm().relax.const(min(places, bits - 1), dtype)
    return emit((op.left_shift if left else op.right_shift)(x, places))


@converts(aten.div.Tensor_mode)
def divide(node: Any, importer: Any) -> Any:
    """Emit a division that is rounded; of floats, to zero."""
    relax, value = load_tvm().relax, node.meta["val"]
    dtype = importer._convert_data_type(value.dtype)
    x, y = (
        part if isinstance(part, relax.Expr) else relax.const(part, dtype)
        for part in importer.retrieve_args(node)[:2]
    )
    how = node.kwargs.get("rounding_mode")
    divide = relax.op.floor_divide if how == "floor" else relax.op.divide
    found = divide(x, y)  # of integers: without the remainder
    if how == "trunc" and value.is_floating_point():
        found = relax.op.trunc(found)
    return importer.block_builder.emit(found)


@converts(aten.full.default)
def full(node: Any, importer: Any) -> Any:
    """Broadcast a constant that is not finite; emit other constants as TVM does."""
    value, made = node.args[1], node.meta["val"]
    if not isinstance(value, int | float) or math.isfinite(value):
        return by_tvm(node, importer)
    relax, dtype = load_tvm().relax, importer._convert_data_type(made.dtype)
    constant = relax.const(value, dtype)
    return importer.block_builder.emit(relax.op.broadcast_to(constant, tuple(made.shape)))


@converts(aten.arange.start_step, aten.linspace.default, aten.eye.default, aten.eye.m)
def constant(node: Any, importer: Any) -> Any:
    """Compute constants by torch: TVM's last number of a range may be missing."""
    if node.all_input_nodes:
        return by_tvm(node, importer)
    dtype = importer._convert_data_type(node.meta["val"].dtype)
    found = node.target(*node.args, **{**node.kwargs, "device": "cpu"})
    return importer.block_builder.emit(load_tvm().relax.const(found.numpy(), dtype))


@replaces(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Round to steps; the mask is true where a value is within the range."""
    steps = torch.round(x * (1 / scale)) + zero
    return (steps.clamp(low, high) - zero) * scale, (steps >= low) & (steps <= high)


@replaces(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_by_tensors(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Round to steps that tensors give, where the quantisation is enabled."""
    found, mask = fake_quantize(x, scale, zero, low, high)
    is_on = enabled != 0
    return torch.where(is_on, found, x), mask | ~is_on


def of_library(program: Any) -> dict[Any, Callable[..., Any]]:
    """Return functions in place of the quantisation operators that a program calls."""
    found = {}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        namespace, _, name = str(getattr(schema, "name", "")).partition("::")
        if namespace == _LIBRARY and name in _FUNCTIONS:
            found[node.target] = _FUNCTIONS[name]
    return found


def _quantize(x: Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return torch.clamp(torch.round(x * (1 / scale)) + zero, low, high).to(dtype)


def _dequantize(
    x: Tensor, scale: Any, zero: Any, *_: Any, out_dtype: torch.dtype | None = None
) -> Tensor:
    numbers = x.to(out_dtype or torch.float32)
    return (numbers if zero is None else numbers - zero) * scale


def _dequantize_channels(
    x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, *_: Any, **options: Any
) -> Tensor:
    zeros = None if zero is None else _along(zero, x, axis)
    return _dequantize(x, _along(scale, x, axis), zeros, **options)


REPLACED[aten.fake_quantize_per_channel_affine_cachemask.default] = (
    lambda x, scale, zero, axis, low, high: fake_quantize(
        x, _along(scale, x, axis), _along(zero, x, axis), low, high
    )
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dequantize_per_channel": _dequantize_channels,
    "dequantize_per_tensor": _dequantize,
    "quantize_per_channel": lambda x, scale, zero, axis, *more: _quantize(
        x, _along(scale, x, axis), _along(zero, x, axis), *more
    ),
    "quantize_per_tensor": _quantize,
}


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)
