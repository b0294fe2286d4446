"""Reuse measurements of earlier runs of equal programs on the same target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.search.decision_search import DecisionSearch
from pruner.tune.run.database import RECORDS, Database, foreign_target, measured_s, records_of
from pruner.tune.spaces.traces import Traces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """Records of a task's programs that ran: traces and latencies."""

    records: list[Any] = field(default_factory=list)

    @property
    def best_s(self) -> float:
        """Seconds of the best record; infinite without records."""
        return min(map(measured_s, self.records), default=float("inf"))

    def teach(self, search: DecisionSearch, space: UnionSpace) -> int:
        """Add the measurements of a search's spaces to it; return their number."""
        rows, ours = Traces(space).rows([record.trace for record in self.records])
        latency_s = np.array([measured_s(record) for record in self.records])
        # several runs may have measured a program: the first record counts
        _, first = np.unique(space.keys(rows[ours]), return_index=True)
        first.sort()
        if len(first):
            search.know(rows[ours][first], latency_s[ours][first])
        return len(first)


def read_known(
    folders: Sequence[Path], workloads: Sequence[Workload], target: Any
) -> Mapping[str, Known]:
    """Read records of equal programs from earlier runs, by task name.

    Drafted programs and failures, which TVM records too, are ignored.

    Raises:
        PrunerError: a folder without records, or with records of another target.
    """
    known = {workload.name: Known() for workload in workloads}
    for folder in folders:
        if not (folder / RECORDS).is_file():
            raise PrunerError(f"warm_start={folder}: no {RECORDS} there; name a run of tune.py")
        database = Database.read(folder).tvm_database
        # TVM's own lookup ignores the target, so it would mix the latencies of two devices
        theirs = foreign_target(database.get_all_tuning_records(), target)
        if theirs is not None:
            raise PrunerError(
                f"warm_start={folder}: measured on {theirs}, this run is for {target}; latencies "
                "of another target cannot be used"
            )
        for workload in workloads:
            records = records_of(database, workload.module, target)
            ran = [record for record in records if measured_s(record) < float("inf")]
            known[workload.name].records.extend(ran)
    return known


def keep(
    known: Mapping[str, Known], workloads: Sequence[Workload], database: Database, target: Any
) -> None:
    """Add the best earlier record of every task to a run's database.

    It is left out if the database has as good a record, of an earlier start or of other runs in the
    same ``work_dir``.
    """
    for workload in workloads:
        found = known[workload.name]
        own = records_of(database.tvm_database, workload.module, target)
        # strictly less: an equal record of an earlier start is not added again
        if found.best_s < min(map(measured_s, own), default=float("inf")):
            database.adopt(workload.module, min(found.records, key=measured_s))
