"""Sums over axes and the rectifier."""

from __future__ import annotations

from pruner.program.dag.build import axes, float_, load, maximum
from pruner.program.dag.expr import Expr
from pruner.program.dag.operators.builder import Dims, Draft, positive


def reduction_layer(shape: list[int], axis: int | list[int] | None, keepdims: bool) -> Draft:
    """Sum over ``axis`` (one, several, or all when None); ``keepdims`` leaves extents of 1.

    Stages: data, sum.
    """
    rank = len(shape)
    positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    chosen = list(range(rank)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    if not chosen or any(not -rank <= a < rank for a in chosen):
        raise ValueError(f"axis {axis!r} does not fit the shape {shape}")
    reduced = sorted({a % rank for a in chosen})
    kept = [d for d in range(rank) if keepdims or d not in reduced]
    dims: Dims = [(f"ax{i}", 1 if d in reduced else shape[d]) for i, d in enumerate(kept)]
    over: Dims = [(f"k{d}", shape[d]) for d in reduced]
    spatial, summed = axes(len(dims)), axes(len(over), start=len(dims))
    indices: list[Expr] = [
        summed[reduced.index(d)] if d in reduced else spatial[kept.index(d)] for d in range(rank)
    ]
    draft = Draft()
    data = draft.placeholder("data", tuple(shape))
    draft.reduce("data_red", dims, over, load(data, *indices), tag="comm_reduce")
    return draft


def relu_layer(*shape: int) -> Draft:
    """max(x, 0) of every element. Stages: data, result."""
    if not shape:
        raise ValueError("relu needs a shape")
    positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    draft = Draft()
    data = draft.placeholder("data", tuple(shape))
    append_relu(draft, data)
    return draft


def append_relu(draft: Draft, source: int) -> int:
    """Add ``max(x, 0)`` of the stage ``source``; returns its position."""
    shape = draft.stages[source].shape
    body = maximum(load(source, *axes(len(shape))), float_(0.0))
    dims: Dims = [(f"i{i}", extent) for i, extent in enumerate(shape)]
    return draft.compute("compute", dims, body, tag="elemwise")
