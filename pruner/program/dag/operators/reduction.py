"""Sum over ``axis`` (int, several, None: all); ``keepdims`` leaves extents of 1."""

from __future__ import annotations

from typing import Any

from pruner.program.dag.expr import Expr, axes, load
from pruner.program.dag.operators.builder import DagBuilder, Dims, Operator, Tensors, positive


def _dag(shape: list[int], axis: int | list[int] | None, keepdims: bool) -> DagBuilder:
    rank = len(shape)
    positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    chosen = list(range(rank)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    if not chosen or any(not -rank <= a < rank for a in chosen):
        raise ValueError(f"axis {axis!r} does not fit the shape {shape}")
    reduced = sorted({a % rank for a in chosen})
    kept = [d for d in range(rank) if keepdims or d not in reduced]
    # TOPI numbers output axes by their place in the output, reduced axes by that in the input.
    dims: Dims = [(f"ax{i}", 1 if d in reduced else shape[d]) for i, d in enumerate(kept)]
    over: Dims = [(f"k{d}", shape[d]) for d in reduced]
    spatial, summed = axes(len(dims)), axes(len(over), start=len(dims))
    indices: list[Expr] = [
        summed[reduced.index(d)] if d in reduced else spatial[kept.index(d)] for d in range(rank)
    ]
    dag = DagBuilder()
    data = dag.placeholder("data", tuple(shape))
    dag.reduce("data_red", dims, over, load(data, *indices))
    return dag


def _te(
    te: Any, topi: Any, dtype: str, shape: list[int], axis: int | list[int] | None, keepdims: bool
) -> Tensors:
    data = te.placeholder(tuple(shape), dtype, name="data")
    return [data, topi.sum(data, axis, keepdims)]


OPERATOR = Operator(dag=_dag, te=_te)
