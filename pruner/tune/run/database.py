"""MetaSchedule's own JSON database of a run, which TVM's tools read and apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pruner.tune.run.journal import cut_incomplete_line
from pruner.tune.tvm_import import load_tvm

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


class Database:
    """``database_workload.json`` and ``database_tuning_record.json`` in one folder.

    Only programs that ran are recorded: failures stand in the journal.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder` None: in memory, for a run that measures nothing."""
        self._ms = load_tvm().meta_schedule
        if folder is None:
            self.tvm_database = self._ms.database.MemoryDatabase()
            return
        for name in (WORKLOADS, RECORDS):
            cut_incomplete_line(folder / name)  # TVM refuses a database with a torn line
        self.tvm_database = self._ms.database.JSONDatabase(work_dir=str(folder))

    def commit(self, module: Any, schedule: Any, costs_s: tuple[float, ...], target: Any) -> None:
        """Append one measured schedule of a task."""
        workload = self.tvm_database.commit_workload(module)
        info = self._ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        record = self._ms.database.TuningRecord(
            schedule.trace, workload, list(costs_s), target, info
        )
        self.tvm_database.commit_tuning_record(record)

    def adopt(self, module: Any, record: Any) -> None:
        """Append a record of another database of the same program."""
        workload = self.tvm_database.commit_workload(module)
        self.tvm_database.commit_tuning_record(
            self._ms.database.TuningRecord(
                record.trace, workload, record.run_secs, record.target, record.args_info
            )
        )

    def best(self, module: Any, target: Any) -> Any | None:
        """The module of a task with its best schedule applied; None where nothing ran."""
        if not self.tvm_database.has_workload(module):
            return None
        schedule = self.tvm_database.query_schedule(module, target, "main")
        return None if schedule is None else schedule.mod
