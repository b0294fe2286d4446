"""Definitions of the standard operators: a workload key becomes a :class:`ComputeDAG`.

A workload key is the JSON list that measurement records carry, for example
``["conv2d_layer", 1, 64, 56, 56, 64, 3, 3, 1, "SAME"]``. All values are float32, images are NCHW.
The definitions are TE's own (TOPI): the same stages in the same order, the same axes, the same
expressions, because schedule steps refer to stages and axes by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.operators.builder import Draft
from pruner.program.dag.operators.conv import conv2d_layer, depthwise_conv2d_layer
from pruner.program.dag.operators.epilogue import append_fused
from pruner.program.dag.operators.matmul import batch_matmul_layer, matmul_layer
from pruner.program.dag.operators.pool import pool_layer
from pruner.program.dag.operators.simple import reduction_layer, relu_layer

OPERATORS: dict[str, Callable[..., Draft]] = {
    "matmul_layer": matmul_layer,
    "batch_matmul_layer": batch_matmul_layer,
    "conv2d_layer": conv2d_layer,
    "depthwise_conv2d_layer": depthwise_conv2d_layer,
    "pool_layer": pool_layer,
    "reduction_layer": reduction_layer,
    "relu_layer": relu_layer,
}


def parse_workload_key(workload_key: str) -> tuple[str, tuple[Any, ...]]:
    """Operator name (or task hash) and arguments of a workload key.

    Raises :class:`UnsupportedProgram` (``bad-workload-key``) when it is not such a JSON list.
    """
    try:
        parsed = json.loads(workload_key)
    except (TypeError, ValueError) as error:
        raise UnsupportedProgram("bad-workload-key", f"not JSON: {workload_key!r}") from error
    if not isinstance(parsed, list) or not parsed or not isinstance(parsed[0], str):
        raise UnsupportedProgram("bad-workload-key", f"not [name, ...]: {workload_key!r}")
    return parsed[0], tuple(parsed[1:])


def dag_for_workload(workload_key: str, fused: tuple[str, ...] = ()) -> ComputeDAG:
    """The compute DAG of a standard operator, ``fused`` naming what follows it.

    ``fused`` holds ``"add"`` (one more input of the output's shape) and ``"relu"`` in order;
    ``"add_relu"`` is short for both. Raises :class:`UnsupportedProgram` with the reason
    ``bad-workload-key``, ``unknown-operator``, ``bad-arguments`` or ``unknown-epilogue``.
    """
    name, args = parse_workload_key(workload_key)
    operator = OPERATORS.get(name)
    if operator is None:
        raise UnsupportedProgram("unknown-operator", f"{name!r}; known: {', '.join(OPERATORS)}")
    try:
        draft = operator(*args)
    except (TypeError, ValueError) as error:
        raise UnsupportedProgram("bad-arguments", f"{workload_key}: {error}") from error
    append_fused(draft, fused)
    return draft.finish()
