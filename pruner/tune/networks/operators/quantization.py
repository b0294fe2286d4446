"""Rounding to steps of a quantisation, which torch does not decompose.

Fake quantisation of networks that were trained for it, and the operators that exports for
quantisation (PT2E) put around others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import REPLACED, replaces

aten = torch.ops.aten

_LIBRARY = "quantized_decomposed"  # torch loads it only where it is used


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
