"""Normalisations without a scale and a shift, which TVM's front end leaves undefined."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import replaces

aten = torch.ops.aten


@replaces(aten.native_group_norm.default)
def group_norm(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, batch: int, channels: int, *more: Any
) -> Any:
    """Scale by one and shift by zero."""
    if scale is not None and shift is not None:
        return NotImplemented
    scale = torch.ones(channels, dtype=x.dtype) if scale is None else scale
    shift = torch.zeros(channels, dtype=x.dtype) if shift is None else shift
    return aten.native_group_norm.default(x, scale, shift, batch, channels, *more)
