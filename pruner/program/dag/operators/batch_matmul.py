"""Batched matrix products, C[b] = A[b] B[b], without transposes."""

from __future__ import annotations

from typing import Any

from pruner.program.dag.expr import axes, load, mul
from pruner.program.dag.operators.builder import DagBuilder, Operator, Tensors, positive


def _dag(batch: int, heads: int, m: int, k: int, n: int) -> DagBuilder:
    positive(batch=batch, heads=heads, m=m, k=k, n=n)
    count = batch * heads
    dag = DagBuilder()
    a, b = dag.placeholder("A", (count, m, k)), dag.placeholder("B", (count, k, n))
    z, i, j, r = axes(4)
    product = mul(load(a, z, i, r), load(b, z, r, j))
    dims = [("b", count), ("i", m), ("j", n)]
    dag.reduce("compute", dims, [("k", k)], product)
    return dag


def _te(te: Any, _topi: Any, dtype: str, batch: int, heads: int, m: int, k: int, n: int) -> Tensors:
    count = batch * heads
    left = te.placeholder((count, m, k), dtype, name="A")
    right = te.placeholder((count, k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    # Tensor and axes are named as in the compute DAG: the workload flags are read off the names.
    out = te.compute(
        (count, m, n),
        lambda b, i, j: te.sum(left[b, i, r] * right[b, r, j], axis=r),
        name="compute",
    )
    return [left, right, out]


OPERATOR = Operator(
    dag=_dag,
    te=_te,
    torch=lambda torch, _: torch.bmm,
    options=("batch", "m", "n", "k"),
    fixed={"heads": 1},
)
