"""Convert operands to their common type; TVM mostly takes the first operand's.

``x + 0.5`` of integers adds 0 in TVM's import, ``x / 2`` divides without a remainder, and a double
of no dimensions makes float32 tensors double.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten

# Operators whose operands have the result's type though they are no pointwise ones.
_OTHERS = (
    *(aten.cat.default, aten.cumsum.default, aten.cumprod.default),
    *(aten.prod.default, aten.prod.dim_int),
)
_CONDITIONS = {aten.where.self: 0, aten.masked_fill.Scalar: 1}  # an operand that stays as it is


def promote(program: Any) -> None:
    """Cast operands to the types that torch computes in, within the program."""
    graph = program.graph
    for node in list(graph.nodes):
        wanted = _operand_type(node)
        if wanted is None:
            continue
        condition = _CONDITIONS.get(node.target)

        def cast(operand: fx.Node, *, node: fx.Node = node, wanted: torch.dtype = wanted) -> Any:
            value = operand.meta["val"]
            if not isinstance(value, Tensor) or value.dtype == wanted:
                return operand
            with graph.inserting_before(node):
                made = graph.call_function(aten._to_copy.default, (operand,), {"dtype": wanted})
            made.meta["val"] = value.to(wanted)
            return made

        node.args = tuple(
            part if place == condition else fx.map_arg(part, cast)
            for place, part in enumerate(node.args)
        )
    graph.eliminate_dead_code()


def _operand_type(node: fx.Node) -> torch.dtype | None:
    """Return the type of a node's operands, None where they keep their own."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, Tensor):
        return None
    if torch.Tag.pointwise not in target.tags and target not in _OTHERS:
        return None
    if value.dtype != torch.bool:
        return value.dtype
    operands = [part.meta["val"] if isinstance(part, fx.Node) else part for part in node.args]
    numbers = [part for part in operands if isinstance(part, Tensor | int | float)]
    if len(numbers) < 2:
        return None
    return reduce(
        torch.promote_types, [torch.result_type(numbers[0], part) for part in numbers[1:]]
    )
