"""What earlier runs measured, taken as known: records of the same program on the same target."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.tune.run.database import RECORDS, Database
from pruner.tune.run.live_search import DecisionSearch
from pruner.tune.spaces.traces import Traces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """Records of one task: TVM's traces and the seconds of their repeats."""

    records: list[Any] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        """Of the best of them; infinite where there are none."""
        return min((_latency_s(record) for record in self.records), default=float("inf"))

    def teach(self, search: DecisionSearch, space: UnionSpace) -> int:
        """Tell a search what was measured of programs of its spaces; how many those are."""
        rows, ours = Traces(space).rows([record.trace for record in self.records])
        latency_s = np.array([_latency_s(record) for record in self.records])
        _, first = np.unique(space.keys(rows[ours]), return_index=True)
        first.sort()
        if len(first):
            search.know(rows[ours][first], latency_s[ours][first])
        return len(first)


def read_known(
    folders: Sequence[Path], workloads: Sequence[Workload], target: Any
) -> Mapping[str, Known]:
    """Records of equal programs in the databases of earlier runs, by the name of the task.

    Raises:
        PrunerError: a folder without records, or with records of another target.
    """
    equal = importlib.import_module("tvm_ffi").structural_equal
    known = {workload.name: Known() for workload in workloads}
    for folder in folders:
        if not (folder / RECORDS).is_file():
            raise PrunerError(f"warm_start={folder}: no {RECORDS} there; name a run of tune.py")
        for record in Database(folder).tvm_database.get_all_tuning_records():
            _check_target(folder, record.target, target)
            for workload in workloads:
                if equal(record.workload.mod, workload.module):
                    known[workload.name].records.append(record)
    return known


def keep(known: Mapping[str, Known], workloads: Sequence[Workload], database: Database) -> None:
    """Put the best record of every task into a run's own database, unless it has some."""
    for workload in workloads:
        records = known[workload.name].records
        if records and not database.tvm_database.has_workload(workload.module):
            database.adopt(workload.module, min(records, key=_latency_s))


def _latency_s(record: Any) -> float:
    return float(np.mean([float(cost) for cost in record.run_secs]))


def _check_target(folder: Path, theirs: Any, ours: Any) -> None:
    if theirs is None or json.loads(str(theirs)) != json.loads(str(ours)):
        raise PrunerError(
            f"warm_start={folder}: measured on {theirs}, this run is for {ours}; latencies of "
            "another target say nothing here"
        )
