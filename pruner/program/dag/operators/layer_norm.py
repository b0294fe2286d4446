"""Layer norm over the last of two axes, then scale and shift.

TOPI reduces two values at once in one stage, which no stage of a compute DAG does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pruner.data.workload import ARGUMENTS
from pruner.program.dag.operators.builder import Operator, Tensors


def _te(te: Any, topi: Any, dtype: str, rows: int, columns: int) -> Tensors:
    data = te.placeholder((rows, columns), dtype, name="data")
    gamma = te.placeholder((columns,), dtype, name="gamma")
    beta = te.placeholder((columns,), dtype, name="beta")
    return [data, gamma, beta, topi.nn.layer_norm(data, gamma, beta, [1])]


def _torch(torch: Any, spec: Mapping[str, Any]) -> Callable[..., Any]:
    norm, shape = torch.nn.functional.layer_norm, (spec["columns"],)
    return lambda x, gamma, beta: norm(x, shape, gamma, beta)


OPERATOR = Operator(dag=None, te=_te, torch=_torch, options=ARGUMENTS["layer_norm"])
