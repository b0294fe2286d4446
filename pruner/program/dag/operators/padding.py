"""Padding: how much (:func:`pad_amounts`) and the padded copy of an image (:func:`pad_nchw`)."""

from __future__ import annotations

from typing import Literal

from pruner.program.dag.build import all_of, axes, compare, float_, if_then_else, int_, load, sub
from pruner.program.dag.expr import Expr
from pruner.program.dag.operators.builder import Draft

Padding = int | str
Amounts = tuple[int, int, int, int]


def pad_amounts(padding: Padding | list[int], kernel_h: int, kernel_w: int) -> Amounts:
    """(top, left, bottom, right) in elements.

    ``"SAME"`` pads kernel - 1 in all whatever the stride, the odd one in front; ``"VALID"`` pads
    nothing; an integer, or ``[h, w]``, is padded on both sides; four integers are taken as they
    are. Source: TOPI's ``get_pad_tuple``.
    """
    match padding:
        case "VALID":
            total_h, total_w = 0, 0
        case "SAME":
            total_h, total_w = kernel_h - 1, kernel_w - 1
        case int() if padding >= 0:
            total_h = total_w = 2 * padding
        case [int(h), int(w)] if min(h, w) >= 0:
            total_h, total_w = 2 * h, 2 * w
        case [int(top), int(left), int(bottom), int(right)] if min(padding) >= 0:
            return top, left, bottom, right
        case _:
            raise ValueError(f"padding must be SAME, VALID or integers >= 0, got {padding!r}")
    top, left = (total_h + 1) // 2, (total_w + 1) // 2
    return top, left, total_h - top, total_w - left


def output_size(size: int, kernel: int, before: int, after: int, stride: int) -> int:
    """Windows along one dimension: floor((size - kernel + before + after) / stride) + 1."""
    windows = (size - kernel + before + after) // stride + 1
    if windows < 1:
        raise ValueError(f"a window of {kernel} does not fit into {size} + {before} + {after}")
    return windows


def pad_nchw(
    draft: Draft,
    data: int,
    amounts: Amounts,
    *,
    name: str,
    axis_name: str = "i",
    value: float = 0.0,
    bounds: Literal["both", "needed"] = "both",
) -> int:
    """Add the padded copy of the NCHW stage ``data``; a plain copy when nothing is padded.

    ``bounds="both"`` compares a padded dimension with its lower and its upper end even where one
    side has no padding (TOPI's Python ``pad``); ``"needed"`` compares with padded ends only (its
    C++ ``pad``, behind pooling).
    """
    shape = draft.stages[data].shape
    before, after = (0, 0, *amounts[:2]), (0, 0, *amounts[2:])
    conditions: list[Expr] = []
    indices: list[Expr] = []
    for axis, size, front, back in zip(axes(4), shape, before, after, strict=True):
        padded = front + back > 0
        if front or (padded and bounds == "both"):
            conditions.append(compare("ge", axis, int_(front)))
        if back or (padded and bounds == "both"):
            conditions.append(compare("lt", axis, int_(size + front)))
        indices.append(sub(axis, int_(front)))
    body: Expr = load(data, *indices)
    if conditions:
        body = if_then_else(all_of(conditions), body, float_(value))
    extents = [a + b + c for a, b, c in zip(shape, before, after, strict=True)]
    dims = [(f"{axis_name}{i}", extent) for i, extent in enumerate(extents)]
    return draft.compute(name, dims, body, tag="injective,pad")
