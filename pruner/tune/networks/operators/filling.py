"""Tensors of one number: TVM cannot lower them if the number is not finite."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from pruner.tune.networks.operators.registry import by_tvm, converts
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten


@converts(aten.full.default)
def full(node: Any, importer: Any) -> Any:
    """Broadcast a constant that is not finite; emit other constants as TVM does."""
    value, made = node.args[1], node.meta["val"]
    if not isinstance(value, int | float) or isfinite(value):
        return by_tvm(node, importer)
    relax, dtype = load_tvm().relax, importer._convert_data_type(made.dtype)
    constant = relax.const(value, dtype)
    return importer.block_builder.emit(relax.op.broadcast_to(constant, tuple(made.shape)))
