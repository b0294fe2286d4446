"""MetaSchedule's JSON database of a run, which follows the journal."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pruner.arrays import Decisions, Floats
from pruner.errors import DataError
from pruner.files import cut_incomplete_line, own_file
from pruner.progress import Log
from pruner.search.space import unique_rows
from pruner.tune.measure.numerics import are_timings
from pruner.tune.run.journal import JOURNAL_FILE, Trial
from pruner.tune.spaces.design import refusal
from pruner.tune.spaces.union import Traces, UnionSpace
from pruner.tune.tvm_import import inside, load_intrinsics, load_tvm

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
NEVER_MEASURED_S = 1e9  # thirty years: a drafted program's cost; TVM gives failures ten times it


class Database:
    """``database_*.json`` in a folder: programs that ran; failures are in the journal."""

    def __init__(self, folder: Path | None) -> None:
        """Open for reading and writing; `folder` None: in memory."""
        self._ms = load_tvm().meta_schedule
        if folder is None:
            self.tvm_database = self._ms.database.MemoryDatabase()
            return
        for name in (WORKLOADS, RECORDS):
            # TVM refuses a database with a torn line
            cut_incomplete_line(own_file(folder / name))
        self.tvm_database = self._ms.database.JSONDatabase(work_dir=str(folder))

    @classmethod
    def read(cls, folder: Path) -> Database:
        """Copy a database into memory while a run may write; raise `DataError`."""
        with tempfile.TemporaryDirectory() as copy:
            for name in (RECORDS, WORKLOADS):  # TVM writes a workload before its first record
                if (folder / name).is_file():
                    shutil.copy(folder / name, copy)
            try:
                return cls(Path(copy))
            except Exception as error:  # TVM's own kinds
                raise DataError(
                    f"{folder}: TVM cannot read its database ({_reason(error)}); tune.py "
                    f"resume={folder} makes the database of a run again, from its {JOURNAL_FILE}"
                ) from error

    def commit(self, module: Any, schedule: Any, costs_s: tuple[float, ...], target: Any) -> None:
        """Append a measured schedule of a task."""
        self.commit_json(module, record_json(module, schedule, costs_s, target))

    def catch_up(self, modules: Mapping[str, Any], trials: Iterable[Trial], log: Log) -> int:
        """Append the journal's records that the database lacks; return their number.

        A record is identified by the seconds of its repeats. One that TVM refuses is left out.
        """
        ran = [t for t in trials if t.record is not None and t.error is None]
        if not ran:
            return 0
        known = self.tvm_database.get_all_tuning_records()
        # a multiset: two programs may have the same seconds
        have = Counter(tuple(float(cost) for cost in r.run_secs or ()) for r in known)
        lacking = Counter(tuple(trial.costs_s) for trial in ran) - have
        added = 0
        for trial in reversed(ran):  # of equal records, a kill loses the last
            if lacking[tuple(trial.costs_s)] > 0:
                lacking[tuple(trial.costs_s)] -= 1
                try:
                    self.commit_json(modules[trial.task], json.loads(trial.record or ""))
                    added += 1
                except Exception as error:  # TVM's own kinds
                    why = f"TVM does not take it: {_reason(error)}"
                    log(f"the record of trial {trial.trial} of {trial.task} is left out ({why})")
        return added

    def commit_json(self, module: Any, record: Any) -> None:
        """Append a result of :func:`record_json`, of this or another process."""
        workload = self.tvm_database.commit_workload(module)
        self.tvm_database.commit_tuning_record(
            self._ms.database.TuningRecord.from_json(record, workload)
        )

    def adopt(self, module: Any, record: Any) -> None:
        """Append a record of another database of the same program."""
        workload = self.tvm_database.commit_workload(module)
        self.tvm_database.commit_tuning_record(
            self._ms.database.TuningRecord(
                record.trace, workload, record.run_secs, record.target, record.args_info
            )
        )

    def scheduled(self, module: Any, record: str, target: Any) -> Any:
        """Make a task's module again with the schedule of `Trial.record`."""
        load_intrinsics(target)
        workload = self._ms.database.Workload(module)
        made = self._ms.database.TuningRecord.from_json(json.loads(record), workload)
        schedule = load_tvm().s_tir.Schedule(module)
        made.trace.apply_to_schedule(schedule, remove_postproc=False)
        return schedule.mod

    def best(self, module: Any, target: Any) -> Any | None:
        """Return a task's module with its best schedule; None if nothing ran."""
        if not self.tvm_database.has_workload(module):
            return None
        load_intrinsics(target)
        schedule = self.tvm_database.query_schedule(module, target, "main")
        if schedule is not None:
            return schedule.mod
        # TVM passes over records without instructions: a function without blocks has no others
        known = records_of(self.tvm_database, module, target)
        return module if any(measured_s(one) < float("inf") for one in known) else None


def open_database(folder: Path, *, own: bool, log: Log) -> Database:
    """Open the database in a folder; set one aside that TVM cannot read.

    The journal has all of the run's `own`; another raises `DataError`.
    """
    try:
        return Database(folder)
    except Exception as error:  # TVM's own kinds
        if not own:
            raise DataError(f"{folder}: TVM cannot read its database ({_reason(error)})") from error
        for name in (RECORDS, WORKLOADS):
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}.damaged")
        log(f"{folder}: TVM cannot read the database ({_reason(error)}); it is made again")
        return Database(folder)


def _reason(error: Exception) -> str:
    return refusal(error)[:160]


def record_json(module: Any, schedule: Any, costs_s: Sequence[float], target: Any) -> list[Any]:
    """Convert a task's schedule to TVM's JSON, for :meth:`Database.commit_json`."""
    ms = load_tvm().meta_schedule
    info = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    workload = ms.database.Workload(module)
    made = ms.database.TuningRecord(schedule.trace, workload, list(costs_s), target, info)
    tvm = load_tvm().tvm
    found: list[Any] = _plain(tvm.get_global_func("s_tir.meta_schedule.TuningRecordAsJSON")(made))
    return found


def block_names(module: Any) -> list[str]:
    """List the names of the blocks of a task in order."""
    return [str(block.name_hint) for block in inside(module["main"].body, load_tvm().s_tir.SBlock)]


def _plain(value: Any) -> Any:
    """Convert TVM's nested containers to JSON.

    An index map, which `TuningRecord.as_json` refuses, becomes its text, as in TVM's own database
    (`JSONDumps`). Raises `TypeError`: another of TVM's objects.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if kind in ("IntImm", "FloatImm"):
        return value.value
    if kind == "IndexMap":
        return load_tvm().tvm.ir.save_json(value)
    if kind in ("Array", "List"):
        return [_plain(one) for one in value]
    if kind in ("Map", "Dict"):
        return {str(name): _plain(one) for name, one in value.items()}
    raise TypeError(f"a record of TVM has a {kind}, which has no form in JSON")


def measured_s(record: Any) -> float:
    """Average a record, in seconds; infinite for drafts, failures, empty records."""
    costs_s = [float(cost) for cost in record.run_secs or ()]
    ran = are_timings(costs_s) and max(costs_s) < NEVER_MEASURED_S
    return float(np.mean(costs_s)) if ran else float("inf")


def best_s(records: Iterable[Any]) -> float:
    """Return the seconds of the best record; infinite without records."""
    return min(map(measured_s, records), default=float("inf"))


def programs_of(records: Sequence[Any], space: UnionSpace) -> tuple[Decisions, Floats, int]:
    """Make a history of records: programs [N, d] and their seconds [N].

    Of several records of a program the first counts, if it ran. The last result is the number of
    records of other spaces.
    """
    rows, ours = Traces(space).rows([record.trace for record in records])
    latency_s = np.array([measured_s(record) for record in records], np.float64)
    places = np.flatnonzero(ours)
    order = places[np.argsort(np.isinf(latency_s[places]), kind="stable")]
    places = np.sort(order[unique_rows(space.keys(rows[order]))])
    return rows[places], latency_s[places], int((~ours).sum())


def unscheduled(module: Any) -> Any:
    """Make a schedule of a block's name alone, which TVM finds in a database."""
    schedule = load_tvm().s_tir.Schedule(module)
    with suppress(load_tvm().s_tir.ScheduleError):  # a function without blocks
        schedule.get_sblock("root")
    return schedule


def is_unscheduled(record: Any) -> bool:
    """True if a record's trace changes nothing."""
    return all(inst.kind.name == "GetSBlock" for inst in record.trace.insts)


def records_of(database: Any, module: Any, target: Any) -> list[Any]:
    """List a database's records of a program on a target, with failures."""
    if not database.has_workload(module):
        return []
    workload = database.commit_workload(module)  # returns the existing workload
    return [
        record
        for record in database.get_all_tuning_records()
        if record.workload.same_as(workload) and same_target(record.target, target)
    ]


def same_target(one: Any, other: Any) -> bool:
    """Compare two of TVM's targets without their order; None equals nothing."""
    if one is None or other is None:
        return False
    return bool(json.loads(str(one)) == json.loads(str(other)))


def foreign_target(records: Iterable[Any], target: Any) -> str | None:
    """Return a target of records that differs from `target`, if any."""
    others = (str(r.target) for r in records if not same_target(r.target, target))
    return min(others, default=None)
