"""The standard operators: compute DAG, TE expression and options of each.

``<name>.py`` has the `OPERATOR` of a name of :data:`pruner.data.workload.ARGUMENTS`. DAGs are
float32, images NCHW. Imported in the Ansor environment, too: nothing but the standard library.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from pruner.data.quarantine import MalformedError
from pruner.data.workload import ARGUMENTS, ParsedKey, parse_workload
from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.operators.builder import Operator, Tensors
from pruner.program.dag.operators.epilogue import epilogues


def find_operator(name: str) -> Operator:
    """Return the operator of the table called ``name``; raise KeyError otherwise."""
    if name not in ARGUMENTS:
        raise KeyError(name)
    # Imported on use: the table must load where an operator's imports are missing.
    operator: Operator = importlib.import_module(f"{__name__}.{name}").OPERATOR
    return operator


def read_key(workload_key: str) -> ParsedKey:
    """Parse a workload key; raise :class:`UnsupportedProgram` (``bad-workload-key``) if damaged."""
    try:
        return parse_workload(workload_key)
    except MalformedError as error:
        raise UnsupportedProgram("bad-workload-key", error.detail) from error


def dag_for_workload(workload_key: str, fused: Sequence[str] = ()) -> ComputeDAG:
    """Build the compute DAG of a standard operator with the epilogues ``fused``.

    Raises :class:`UnsupportedProgram`: ``bad-workload-key``, ``unknown-operator`` (also without a
    compute DAG), ``bad-arguments`` or ``unknown-epilogue``.
    """
    workload = read_key(workload_key)
    operator = _operator_of(workload)
    if operator.dag is None:
        raise UnsupportedProgram("unknown-operator", f"{workload.op!r} has no compute DAG")
    behind = epilogues(fused)
    try:
        dag = operator.dag(*workload.args)
        for epilogue in behind:
            epilogue.dag(dag)
        return dag.finish()
    except MemoryError:
        raise
    except Exception as error:  # unforeseen arguments cost their task only
        raise UnsupportedProgram("bad-arguments", f"{workload_key:.80}: {error}") from error


def te_tensors(
    te: Any, topi: Any, workload_key: str, fused: Sequence[str] = (), dtype: str = "float32"
) -> Tensors:
    """Return TE's inputs and output of the same work; raises as :func:`dag_for_workload`."""
    workload = read_key(workload_key)
    try:
        tensors = _operator_of(workload).te(te, topi, dtype, *workload.args)
    except (TypeError, ValueError) as error:
        raise UnsupportedProgram("bad-arguments", f"{workload_key}: {error}") from error
    for epilogue in epilogues(fused):
        tensors = epilogue.te(te, topi, tensors)
    return tensors


def _operator_of(workload: ParsedKey) -> Operator:
    if workload.operator is None:
        known = ", ".join(f"{name}_layer" for name in ARGUMENTS)
        raise UnsupportedProgram("unknown-operator", f"{workload.op!r}; known: {known}")
    return find_operator(workload.operator)
