"""Import other people's MetaSchedule databases as records and design spaces.

Functions of other releases of TVM are rebuilt; what cannot be read is counted with the reason.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.data.importing import Compression, ImportResult, RecordWriter, new_platform
from pruner.data.metaschedule import (
    StoredRecord,
    StoredWorkload,
    decisions_of,
    read_records,
    read_workloads,
)
from pruner.data.parse import LineParser
from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.root import summary
from pruner.data.steps import TRACE
from pruner.errors import DataError, PrunerError, UnsupportedProgram
from pruner.progress import Log, silent
from pruner.tune.kinds import is_gpu
from pruner.tune.pools.older_functions import load_module, saved_version
from pruner.tune.pools.records import FAILED_COST_S, UNKNOWN_ERROR, VERSION, save_space
from pruner.tune.spaces.batched.trace import read_program
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.tvm_import import load_intrinsics, load_tvm
from pruner.tune.workloads import Workload, normalised

_NO_HARDWARE = [0] * 8
_TRIES = 3  # records that a design space is opened with: the decisions of one may be damaged


@dataclass(slots=True, eq=False)
class _Import:
    out: Path
    quarantine: Quarantine
    log: Log
    writer: RecordWriter
    parser: LineParser
    reasons: Counter[str]

    def refuse(self, file: Path, line: int, error: Exception) -> None:
        reason = error.reason if isinstance(error, MalformedError) else Reason.BAD_LINE
        detail = str(error).partition("\n")[0][:120] or type(error).__name__
        self.quarantine.add(file=str(file), line=line, reason=reason, detail=detail)
        self.reasons[detail] += 1


def import_databases(
    pairs: Sequence[tuple[Path, Path]],
    out: Path,
    platform: str,
    quarantine: Quarantine,
    log: Log = silent,
    *,
    compression: Compression = "none",
) -> ImportResult:
    """Write records to ``out/measure_records/<platform>/<task>.json``.

    Raises `DataError` if no record can be read, and as `new_platform`.
    """
    with new_platform(out, platform, quarantine, compression) as writer:
        state = _Import(out, quarantine, log, writer, LineParser(), Counter())
        for workloads, records in pairs:
            stored = read_workloads(workloads, quarantine)
            by_workload: dict[int, list[StoredRecord]] = {}
            for record in read_records(records, quarantine):
                by_workload.setdefault(record.workload, []).append(record)
            for number, found in by_workload.items():
                if number in stored:
                    _task(state, stored[number], found, records)
                    continue
                lacking = DataError(f"no function for it in {workloads.name}")
                for record in found:
                    state.refuse(records, record.line, lacking)
        worst = ", ".join(f"{num} x {why}" for why, num in state.reasons.most_common(3))
        if not writer.records:
            why = worst or summary(quarantine)
            raise DataError(f"{pairs[0][1]}: no record could be read ({why})")
    if worst:
        log(f"{state.reasons.total()} records left out: {worst}")
    return writer.result(len(pairs))


def _task(
    state: _Import, stored: StoredWorkload, records: Sequence[StoredRecord], file: Path
) -> None:
    name = f"tir_{stored.hash}"
    try:
        module = normalised(load_module(stored.module))
        key = Workload(name=name, module=module).key
    except Exception as error:  # another TVM's functions fail to load in many ways
        why = f"a function of TVM {saved_version(stored.module)} not read: {error}"
        for record in records:
            state.refuse(file, record.line, PrunerError(why))
        state.log(f"{name}: {len(records)} records left out: {why.splitlines()[0]}")
        return
    spaces: dict[tuple[bytes, str], tuple[str, int] | UnsupportedProgram] = {}
    tries: Counter[tuple[bytes, str]] = Counter()
    before = state.writer.records
    for record in records:
        try:
            # without decisions: records of one space differ in nothing else
            steps = record.skeleton, json.dumps(record.target)
            space = spaces.get(steps)
            if space is None or (isinstance(space, UnsupportedProgram) and tries[steps] < _TRIES):
                space = spaces[steps] = _space(state.out, module, record)
                tries[steps] += 1
            if isinstance(space, UnsupportedProgram):
                raise space.with_traceback(None)  # raised for every record of the space
            line = _line(key, *space, record)
            state.writer.add(state.parser.parse(line), line, (str(file), record.line), name=name)
        except (PrunerError, MalformedError) as error:
            state.refuse(file, record.line, error)
    made = state.writer.records - before
    state.log(f"{name}: {made} of {len(records)} records, {len(spaces)} design spaces")


def _space(out: Path, module: Any, record: StoredRecord) -> tuple[str, int] | UnsupportedProgram:
    """Write a record's design space: its name and slots, or why there is none."""
    tvm, s_tir, _, _ = load_tvm()
    try:
        target = tvm.target.Target(record.target)
        load_intrinsics(target)
        if is_gpu(target):  # only postprocessing for CPUs lays these weights out anew
            module = tvm.IRModule({"main": module["main"].without_attr("layout_free_buffers")})
        schedule = s_tir.Schedule(module, seed=1, debug_mask=0, error_render_level="none")
        s_tir.Trace.apply_json_to_schedule(record.trace, schedule)
        design = DesignSpace(module, target, schedule.trace, None)
        program = read_program(design)
        return save_space(out, design, program), program.num_slots
    except UnsupportedProgram as error:
        return error
    except OSError:  # the disk's, not the trace's
        raise
    except Exception as error:  # traces of another TVM fail in many ways
        return UnsupportedProgram("trace-not-read", str(error).partition("\n")[0][:100])


def _line(key: str, space: str, num_slots: int, record: StoredRecord) -> bytes:
    decisions = decisions_of(record)
    if len(decisions) != num_slots:
        detail = f"{len(decisions)} decisions, the space takes {num_slots}"
        raise MalformedError(Reason.BAD_FIELD, detail)
    costs, error_no = (
        (list(record.costs_s), 0) if record.costs_s else ([FAILED_COST_S], UNKNOWN_ERROR)
    )
    target = record.target if isinstance(record.target, str) else json.dumps(record.target)
    steps = [[TRACE, space, decisions]]
    header = [key, target, _NO_HARDWARE]
    line = {"i": [header, [[], steps]], "r": [costs, error_no, 0.0, 0], "v": VERSION}
    return json.dumps(line).encode()
