"""Matrix product: C[x, y] = sum over k of A[x, k] B[k, y]."""

from __future__ import annotations

from typing import Any

from pruner.program.dag.expr import axes, load, mul
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive


def _dag(m: int, k: int, n: int) -> DagBuilder:
    positive(m=m, k=k, n=n)
    dag = DagBuilder()
    a, b = dag.placeholder("A", (m, k)), dag.placeholder("B", (k, n))
    x, y, r = axes(3)
    product = mul(load(a, x, r), load(b, r, y))
    dag.reduce("compute", [("x", m), ("y", n)], [("k", k)], product)
    return dag


def _te(te: Any, _topi: Any, dtype: str, m: int, k: int, n: int) -> Tensors:
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda x, y: te.sum(a[x, r] * b[r, y], axis=r), name="C")
    return [a, b, c]


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=lambda torch, _: lambda a, b, bias: a @ b if bias is None else torch.addmm(bias, a, b),
    torch_takes_bias=True,
    options=("m", "n", "k"),
)
