"""max(x, 0) of every element, alone or behind another operator."""

from __future__ import annotations

from typing import Any

from pruner.program.dag.expr import axes, float_, load, maximum
from pruner.program.dag.operators.builder import DagBuilder, Dims, Operator, Tensors, positive


def append_relu(dag: DagBuilder) -> None:
    """Add ``max(x, 0)`` of the last stage."""
    shape = dag.stages[-1].shape
    body = maximum(load(dag.last, *axes(len(shape))), float_(0.0))
    dims: Dims = [(f"i{i}", extent) for i, extent in enumerate(shape)]
    dag.compute("compute", dims, body)


def _dag(*shape: int) -> DagBuilder:
    if not shape:
        raise ValueError("relu needs a shape")
    positive(**{f"shape[{i}]": size for i, size in enumerate(shape)})
    dag = DagBuilder()
    dag.placeholder("data", tuple(shape))
    append_relu(dag)
    return dag


def _te(te: Any, topi: Any, dtype: str, *shape: int) -> Tensors:
    data = te.placeholder(tuple(shape), dtype, name="data")
    return [data, topi.nn.relu(data)]


OPERATOR = Operator(dag=_dag, te=_te)
