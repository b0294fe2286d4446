"""Ansor's GPU skeleton of a matrix product, with room for any tiles."""

from dataclasses import replace
from typing import Any

from pruner.program.dag.expr import Expr, rewrite
from pruner.program.dag.operators import dag_for_workload
from pruner.program.nests import LoopNests

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
    return [
        ["CHW", 2, "local"],
        ["SP", 2, 0, m, list(rows), 1],
        ["SP", 2, 5, n, list(columns), 1],
        ["SP", 2, 10, k, list(reduce), 1],
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["FSP", 3, 0, 1, 3],
        ["FSP", 3, 4, 2, 3],
        ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]],
        ["CA", 2, 3, 5],
        ["CHR", 1, "shared", [2]],
        ["CA", 2, 3, 6],
        ["CHR", 0, "shared", [3]],
        ["CA", 1, 4, 6],
        ["FU", 5, [0, 1]],
        ["AN", 5, 0, 5],
        ["FU", 5, [1, 2]],
        ["AN", 5, 1, 4],
        ["FU", 5, [2, 3]],
        ["AN", 5, 2, 6],
        ["FU", 3, [0, 1]],
        ["SP", 3, 0, 1, [vectors[1]], 1],
        ["AN", 3, 1, 2],
        ["FFSP", 3, 0, [2, 1], 1, 1],
        ["AN", 3, 1, 6],
        ["FU", 1, [0, 1]],
        ["SP", 1, 0, 1, [vectors[0]], 1],
        ["AN", 1, 1, 2],
        ["FFSP", 1, 0, [2, 1], 1, 1],
        ["AN", 1, 1, 6],
        ["PR", 4, 0, f"auto_unroll_max_step${unroll}"],
    ]


def in_type(nests: LoopNests, dtype: str) -> LoopNests:
    """The same nests with every float in another type: operators' DAGs are float32."""

    def rule(node: Expr) -> Expr:
        return replace(node, dtype=dtype) if getattr(node, "dtype", "") == "float32" else node

    for buffer in nests.buffers:
        buffer.dtype = dtype
    for store in nests.stores:
        store.value = rewrite(store.value, rule)
    return nests
