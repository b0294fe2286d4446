"""Ansor's GPU skeleton of a matrix product, with room for any tiles."""

from dataclasses import replace
from typing import Any

from pruner.program.dag.expr import Expr, rewrite
from pruner.program.dag.operators import dag_for_workload
from pruner.program.nests import LoopNests
from tests.program import schedules

Tiles = tuple[int, int, int, int]  # vthread, thread, outer tile, inner tile


def matmul_dag(m: int, k: int, n: int) -> Any:
    return dag_for_workload(f'["matmul_layer", {m}, {k}, {n}]', ())


def matmul_steps(
    m: int,
    k: int,
    n: int,
    rows: Tiles,
    columns: Tiles,
    reduce: tuple[int, int],
    *,
    vectors: tuple[int, int] = (1, 1),
    unroll: int = 512,
) -> list[list[Any]]:
    """C[m, n] = A[m, k] B[k, n]: blocks, vthreads, threads, k0, k1, outer tile, k2, inner tile."""
    tiles = [*rows], [*columns], [*reduce]
    steps = schedules.matmul_steps(*tiles, vectors=(vectors[1], vectors[0]), unroll=unroll)
    splits = [step for step in steps if step[0] == "SP"]
    for step, extent in zip(splits, (m, n, k, 1, 1), strict=True):
        step[3] = extent
    return steps


def in_type(nests: LoopNests, dtype: str) -> LoopNests:
    """The same nests with every float in another type: operators' DAGs are float32."""

    def rule(node: Expr) -> Expr:
        return replace(node, dtype=dtype) if getattr(node, "dtype", "") == "float32" else node

    for buffer in nests.buffers:
        buffer.dtype = dtype
    for store in nests.stores:
        store.value = rewrite(store.value, rule)
    return nests
