"""Features of loop nests, whatever front end made them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pruner.features.batch import FeatureBatch
from pruner.features.dataflow import NUM_ROWS, DataflowKind, dataflow_features
from pruner.features.statement.analysis import analyse_stores
from pruner.features.statement.features import statement_features
from pruner.program.te.lower import LoopNests

_STATEMENT_COLUMNS, _DATAFLOW_COLUMNS = 164, 23


def featurize_nests(
    groups: Iterable[tuple[NDArray[np.int64], LoopNests]],
    num: int,
    *,
    workload_flags: NDArray[np.float32],
    failures: dict[int, str],
    dataflow: DataflowKind = "paper",
) -> FeatureBatch:
    """Features of ``num`` programs given as groups (row numbers, nests of these rows).

    Rows in no group, and those that ``failures`` names with a reason, are invalid: all zero.
    ``workload_flags`` float32 [10].
    """
    parts = []
    for rows, nests in groups:
        analyses = analyse_stores(nests)
        statement = statement_features(nests, analyses)
        parts.append((rows, statement, dataflow_features(nests, analyses, dataflow)))
    most = max((part.shape[1] for _, part, _ in parts), default=0)
    out = FeatureBatch(
        statement=np.zeros((num, most, _STATEMENT_COLUMNS), np.float32),
        num_statements=np.zeros(num, np.int32),
        dataflow=np.zeros((num, NUM_ROWS[dataflow], _DATAFLOW_COLUMNS), np.float32),
        valid=np.zeros(num, bool),
        workload_flags=workload_flags,
        psa=None,
        failures=failures,
    )
    for rows, statement, flow in parts:
        out.statement[rows, : statement.shape[1]] = statement
        out.num_statements[rows] = statement.shape[1]
        out.dataflow[rows] = flow
        out.valid[rows] = True
    bad = np.array(sorted(failures), np.int64)
    for table in (out.statement, out.num_statements, out.dataflow, out.valid):
        table[bad] = 0
    return out
