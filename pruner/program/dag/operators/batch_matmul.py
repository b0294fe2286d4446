"""Products of ``batch * heads`` matrices, no transposes: C[b, i, j] = sum of A[b, i, k] B[b, k, j].

Stages: A, B, C. The output is named ``compute(b, i, j)`` as TenSet's batched products are.
"""

from __future__ import annotations

from typing import Any

from pruner.program.dag.build import axes, load, mul
from pruner.program.dag.operators.builder import DagBuilder, positive
from pruner.program.dag.operators.operator import Operator, Tensors


def _dag(batch: int, heads: int, m: int, k: int, n: int) -> DagBuilder:
    positive(batch=batch, heads=heads, m=m, k=k, n=n)
    count = batch * heads
    dag = DagBuilder()
    a, b = dag.placeholder("A", (count, m, k)), dag.placeholder("B", (count, k, n))
    z, i, j, r = axes(4)
    product = mul(load(a, z, i, r), load(b, z, r, j))
    dims = [("b", count), ("i", m), ("j", n)]
    dag.reduce("compute", dims, [("k", k)], product, tag="batch_matmul")
    return dag


def _te(te: Any, _topi: Any, dtype: str, batch: int, heads: int, m: int, k: int, n: int) -> Tensors:
    count = batch * heads
    a = te.placeholder((count, m, k), dtype, name="A")
    b = te.placeholder((count, k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((count, m, n), lambda z, x, y: te.sum(a[z, x, r] * b[z, r, y], axis=r), name="C")
    return [a, b, c]


OPERATOR = Operator(dag=_dag, te=_te, options=("batch", "m", "n", "k"), fixed={"heads": 1})
