"""Matrix products, no transposes."""

from __future__ import annotations

from pruner.program.dag.build import axes, load, mul
from pruner.program.dag.operators.builder import Draft, positive


def matmul_layer(m: int, k: int, n: int) -> Draft:
    """C[x, y] = sum over k of A[x, k] B[k, y]. Stages: A, B, C."""
    positive(m=m, k=k, n=n)
    draft = Draft()
    a, b = draft.placeholder("A", (m, k)), draft.placeholder("B", (k, n))
    x, y, r = axes(3)
    product = mul(load(a, x, r), load(b, r, y))
    draft.reduce("compute", [("x", m), ("y", n)], [("k", k)], product)
    return draft


def batch_matmul_layer(batch: int, heads: int, m: int, k: int, n: int) -> Draft:
    """C[b, i, j] = sum over k of A[b, i, k] B[b, k, j] for batch * heads matrices.

    Stages: A, B, C. The output is named ``compute(b, i, j)`` as TenSet's batched products are.
    """
    positive(batch=batch, heads=heads, m=m, k=k, n=n)
    count = batch * heads
    draft = Draft()
    a, b = draft.placeholder("A", (count, m, k)), draft.placeholder("B", (count, k, n))
    z, i, j, r = axes(4)
    product = mul(load(a, z, i, r), load(b, z, r, j))
    draft.reduce(
        "compute", [("b", count), ("i", m), ("j", n)], [("k", k)], product, tag="batch_matmul"
    )
    return draft
