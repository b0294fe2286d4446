"""Softmax over the last of two axes: exp(x - max) / sum."""

from __future__ import annotations

from typing import Any

from pruner.data.workload import ARGUMENTS
from pruner.program.dag.expr import FLOAT32_MIN, Call, axes, div, load, sub
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive


def _dag(rows: int, columns: int) -> DagBuilder:
    positive(rows=rows, columns=columns)
    dag = DagBuilder()
    data = dag.placeholder("data", (rows, columns))
    i, j = axes(2)  # of a reduction, j is the reduced axis
    row, both, over = [("i0", rows)], [("i0", rows), ("i1", columns)], [("k", columns)]
    largest = dag.reduce(
        "T_softmax_maxelem",
        row,
        over,
        load(data, i, j),
        combiner="max",
        identity=FLOAT32_MIN,
    )
    power = Call("exp", (sub(load(data, i, j), load(largest, i)),), "float32")
    powers = dag.compute("T_softmax_exp", both, power)
    total = dag.reduce("T_softmax_expsum", row, over, load(powers, i, j))
    dag.compute("T_softmax_norm", both, div(load(powers, i, j), load(total, i)))
    return dag


def _te(te: Any, topi: Any, dtype: str, rows: int, columns: int) -> Tensors:
    data = te.placeholder((rows, columns), dtype, name="data")
    return [data, topi.nn.softmax(data, axis=-1)]


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=lambda torch, _: lambda x: torch.softmax(x, -1),
    options=ARGUMENTS["softmax"],
)
