"""Records of one task in, feature arrays out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import UnsupportedProgram
from pruner.features.dataflow import NUM_ROWS, DataflowKind, dataflow_features
from pruner.features.primitives import PrimitiveTokens, primitive_tokens
from pruner.features.statement.analysis import analyse_stores
from pruner.features.statement.features import statement_features
from pruner.features.symbols.official import official_symbols
from pruner.features.workload import workload_flags
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.task_index import TaskIndex, find_dag
from pruner.program.te.lower import build_nests
from pruner.program.te.skeleton import SkeletonGroup, group_programs
from pruner.program.te.steps import Primitive

logger = logging.getLogger(__name__)
_CHUNK = 4096  # programs at once: enough to pay for Python, few enough for the caches


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureBatch:
    """Features of N programs of one task, S = the largest number of statements.

    ``statement`` float32 [N, S, 164], zero padded; ``num_statements`` int32 [N]; ``dataflow``
    float32 [N, 10 or 8, 23]; ``valid`` bool [N]: False where the program could not be replayed
    (all its rows are zero, ``failures`` tells why); ``workload_flags`` float32 [10], the same for
    all programs; ``psa`` float32 [N, S, 11] or None; ``tokens``: the schedule primitives, None
    where the programs have none (they were not made by replaying a skeleton).
    """

    statement: NDArray[np.float32]
    num_statements: NDArray[np.int32]
    dataflow: NDArray[np.float32]
    valid: NDArray[np.bool_]
    workload_flags: NDArray[np.float32]
    psa: NDArray[np.float32] | None
    failures: dict[int, str]
    tokens: PrimitiveTokens | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    rows: NDArray[np.int64]
    statement: NDArray[np.float32]
    dataflow: NDArray[np.float32]
    psa: NDArray[np.float32] | None
    resolved: NDArray[np.bool_]


def featurize_records(
    workload_key: str,
    fused: tuple[str, ...],
    steps_list: Sequence[list[list[Any]]],
    *,
    tasks: TaskIndex | None = None,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
) -> FeatureBatch:
    """Features of a task's records; ``tasks`` finds the operators of TenSet's own tasks.

    Raises:
        UnsupportedProgram: the operator is unknown.
    """
    dag = find_dag(workload_key, fused, tasks)
    return featurize_steps(dag, steps_list, dataflow=dataflow, psa=psa)


def featurize_vectors(
    dag: ComputeDAG,
    skeleton: tuple[Primitive, ...],
    decisions: NDArray[np.int64],
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
) -> FeatureBatch:
    """Features straight from decision vectors int64 [N, d] of one skeleton.

    Raises:
        UnsupportedProgram: the skeleton cannot be replayed.
    """
    everything = np.arange(len(decisions))
    group = SkeletonGroup(skeleton=skeleton, rows=everything, decisions=decisions)
    parts = [_chunk(dag, group, start, dataflow, psa) for start in range(0, len(decisions), _CHUNK)]
    batch = _assemble(dag, len(decisions), parts, {}, dataflow, psa)
    return replace(batch, tokens=primitive_tokens([group], len(decisions)))


def featurize_steps(
    dag: ComputeDAG,
    steps_list: Sequence[list[list[Any]]],
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
) -> FeatureBatch:
    """Features of Ansor step lists of one operator, in the order given.

    Args:
        dag: the operator.
        steps_list: one step list a program; any mix of skeletons.
        dataflow: ``paper`` (10 rows) or ``official`` (8 rows).
        psa: also compute the official analyzer's symbols.

    Returns:
        A batch with ``valid`` False, and a reason, for programs that cannot be replayed.
    """
    groups, unreadable = group_programs(steps_list)
    failures = {row: error.reason for row, error in unreadable.items()}
    parts: list[_Part] = []
    for group in groups:
        for start in range(0, len(group.rows), _CHUNK):
            rows = group.rows[start : start + _CHUNK]
            try:
                parts.append(_chunk(dag, group, start, dataflow, psa))
            except UnsupportedProgram as error:
                failures |= dict.fromkeys(rows.tolist(), error.reason)
                logger.debug("%d programs not featurised: %s", len(rows), error)
    batch = _assemble(dag, len(steps_list), parts, failures, dataflow, psa)
    if failures:
        logger.info("programs not featurised: %s", dict(Counter(failures.values())))
    return replace(batch, tokens=primitive_tokens(groups, len(steps_list)))


def _chunk(
    dag: ComputeDAG, group: SkeletonGroup, start: int, dataflow: DataflowKind, psa: bool
) -> _Part:
    decisions = group.decisions[start : start + _CHUNK]
    nests = build_nests(dag, group.skeleton, decisions)
    analyses = analyse_stores(nests)
    return _Part(
        group.rows[start : start + _CHUNK],
        statement_features(nests, analyses),
        dataflow_features(nests, analyses, dataflow),
        official_symbols(nests, analyses) if psa else None,
        np.broadcast_to(nests.bounds.resolved, len(decisions)),
    )


def _assemble(
    dag: ComputeDAG,
    num: int,
    parts: list[_Part],
    failures: dict[int, str],
    dataflow: DataflowKind,
    psa: bool,
) -> FeatureBatch:
    most = max((p.statement.shape[1] for p in parts), default=0)
    statement = np.zeros((num, most, 164), np.float32)
    flow = np.zeros((num, NUM_ROWS[dataflow], 23), np.float32)
    symbols = np.zeros((num, most, 11), np.float32) if psa else None
    count = np.zeros(num, np.int32)
    valid = np.zeros(num, bool)
    for part in parts:
        failures |= dict.fromkeys(part.rows[~part.resolved].tolist(), "unresolved-size")
        rows, kept = part.rows[part.resolved], part.resolved
        size = part.statement.shape[1]
        statement[rows, :size] = part.statement[kept]
        flow[rows] = part.dataflow[kept]
        if symbols is not None and part.psa is not None:
            symbols[rows, :size] = part.psa[kept]
        count[rows] = size
        valid[rows] = True
    return FeatureBatch(
        statement=statement,
        num_statements=count,
        dataflow=flow,
        valid=valid,
        workload_flags=workload_flags(dag),
        psa=symbols,
        failures=failures,
    )
