"""Settings and files of a pool: records, MetaSchedule's database, bundles."""

import gzip
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pruner.data.networks import FOLDER as NETWORKS
from pruner.data.networks import TASKS
from pruner.data.root import FOLDER as RECORDS
from pruner.data.steps import TRACE
from pruner.data.workload import parse_workload
from pruner.errors import PrunerError
from pruner.files import read_json, write_atomic, write_checksums, write_json
from pruner.program.device import CpuDevice, Device
from pruner.program.tir.saved import FOLDER as SPACES
from pruner.program.tir.saved import SUFFIX, SavedSpace
from pruner.program.tir.trace import TraceProgram
from pruner.tune.measure.measurer import Platform
from pruner.tune.pools.measurement_log import MeasurementLog, Program
from pruner.tune.run.database import Database
from pruner.tune.spaces.batched.prim_func import module_text
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload

ABOUT = "about.json"  # of a collection: pools, machine, settings
_OF_ONE_HOST = ("kernel",)  # of its machine: identifies a host, not its abilities
FAILED_COST_S = 1e10  # Ansor's cost of a program that could not be measured
UNKNOWN_ERROR = 8
# MeasureErrorNo of Ansor
ERROR_NUMBERS = {
    "build_timeout": 6,
    "run_timeout": 7,
    "wrong_result": 5,
    "run_error": 4,
    "run_crash": 4,
    "run_illegal_access": 4,
}
_COMPILER = 2  # any other error while building
VERSION = "v0.6"


def records_path(out: Path, platform: str, task: str) -> Path:
    """Return the file of a task's records."""
    return out / RECORDS / platform / f"{task}.json.gz"


def task_name(workload: Workload) -> str:
    """Return the file stem of a task; mark half precision."""
    if workload.spec is None:
        return workload.name
    stem = parse_workload(workload.key).file_stem(tuple(workload.spec["epilogue"]))
    return stem + ("_fp16" if workload.spec["dtype"] == "float16" else "")


def record(
    program: Program, spaces: Sequence[str], widths: Sequence[int], header: Sequence[Any]
) -> dict[str, Any]:
    """Convert a measured program to a record.

    Its costs are the medians of the two timings that agree best; ``timings`` are all, in order:
    ``[Unix seconds, [seconds of every repeat]]``.
    """
    space, *decisions = program.row
    steps = [[TRACE, spaces[space], decisions[: widths[space]]]]
    costs, error_no = [one.latency_s for one in program.closest], 0
    if program.failed:
        costs, error_no = [FAILED_COST_S], error_number(str(program.error))
    known = program.valid and program.checked is not None
    return {
        "i": [list(header), [[], steps]],
        "r": [costs, error_no, round(program.seconds, 4), int(program.last_at)],
        "v": VERSION,
        "origin": program.origin,
        "timings": [[round(one.at, 1), list(one.costs_s)] for one in program.passes],
        **({"checked": program.checked} if known else {}),
    }


def save_space(out: Path, design: DesignSpace, program: TraceProgram) -> str:
    """Write a design space, once for equal content; return its name."""
    trace = tuple(str(line) for line in design.trace.as_python(True))
    saved = SavedSpace(program=program, text=module_text(design.module), trace=trace)
    return saved.save(out / SPACES)


def error_number(error: str) -> int:
    """Return Ansor's number of a kind of failure."""
    other = _COMPILER if error.startswith("build_") else UNKNOWN_ERROR
    return ERROR_NUMBERS.get(error, other)


def header_of(workload: Workload, platform: Platform, device: Device) -> list[Any]:
    """Make the head of a task's records: key, target, Ansor's eight numbers."""
    line = device.transaction_bytes if isinstance(device, CpuDevice) else 64
    hardware = [platform.cores, device.vector_bytes, line, 0, 0, 0, 0, 0]
    return [workload.key, platform.target_json, hardware]


def write_records(
    path: Path, measurement_log: MeasurementLog, widths: Sequence[int], header: Sequence[Any]
) -> None:
    """Write the record file of a pool."""
    measured = [p for p in measurement_log.programs if p.has_record]
    lines = [json.dumps(record(p, measurement_log.spaces, widths, header)) for p in measured]
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomic(path) as partial:  # no time stamp: the same records give the same bytes
        text = "".join(line + "\n" for line in lines)
        partial.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def write_database(
    folder: Path,
    workload: Workload,
    platform: Platform,
    space: UnionSpace,
    measurement_log: MeasurementLog,
) -> None:
    """Write MetaSchedule's database of the programs that ran, atomically."""
    # TVM appends record by record: only a rename makes the folder complete at once
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    database = Database(partial)
    ran = [program for program in measurement_log.programs if program.valid]
    for program in ran:
        (schedule,) = space.instantiate(np.array([program.row], np.int64))
        if schedule is not None:
            costs_s = tuple(one.latency_s for one in program.closest)
            database.commit(workload.module, schedule, costs_s, platform.target)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def about_pool(measurement_log: MeasurementLog, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise a pool, with the machine's conditions, for ``about.json``."""
    programs = measurement_log.programs
    valid = [program for program in programs if program.valid]
    twice = [p.passes[:2] for p in valid if len(p.passes) > 1]
    spread = [abs(second.latency_s / first.latency_s - 1.0) for first, second in twice]
    names = {name for reading in measurement_log.conditions for name in reading} - {"at"}
    readings = {
        name: [reading[name] for reading in measurement_log.conditions if name in reading]
        for name in sorted(names)
    }
    return {
        **identity,
        "valid": len(valid),
        "failed": sum(p.failed and p.has_record for p in programs),
        "unchecked": sum(p.checked is False for p in valid),
        "timings": sum(len(p.passes) for p in programs),
        "timed_once": sum(len(p.passes) < 2 for p in valid),
        "spread_median": float(np.median(spread)) if spread else None,  # of the first two timings
        "seconds": round(sum(p.seconds for p in programs), 1),
        "first": _day(min((p.passes[0].at for p in valid), default=0.0)),
        "last": _day(max((p.last_at for p in valid), default=0.0)),
        "conditions": {
            name: {"median": float(np.median(v)), "max": max(v)} for name, v in readings.items()
        },
    }


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def bundle(collection: Path, out: Path) -> dict[str, int]:
    """Copy records, spaces, networks, ``about.json`` to `out`, with checksums; return counts."""
    if out.exists():
        raise PrunerError(f"{out}: exists and is left alone; remove it, or name another folder")
    if not (collection / ABOUT).is_file():
        raise PrunerError(f"{collection}: no {ABOUT} in it; pruner collect makes one")
    about = read_json(collection / ABOUT, dict)
    files, spaces, count = [], set(), 0
    for entry in about["pools"]:
        path = records_path(collection, entry["platform"], entry["task"])
        lines = gzip.decompress(path.read_bytes()).splitlines() if path.is_file() else ()
        records = [json.loads(line) for line in lines]
        if len(records) != entry["valid"] + entry["failed"]:
            raise PrunerError(
                f"{collection}: {entry['platform']} {entry['task']} is not finished; the "
                "command that began it continues it"
            )
        files.append(path)
        spaces |= {step[1] for record in records for step in record["i"][1][1] if step[0] == TRACE}
        count += len(records)
    files += [collection / SPACES / f"{name}{SUFFIX}" for name in spaces]
    files += (collection / NETWORKS).glob(f"*/*/{TASKS}")
    for path in files:
        copy = out / path.relative_to(collection)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    machine = {name: value for name, value in about["machine"].items() if name not in _OF_ONE_HOST}
    write_json(out / ABOUT, {**about, "machine": machine}, indent=1)
    write_checksums(out, out.rglob("*"))
    return {"pools": len(about["pools"]), "records": count, "spaces": len(spaces)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many programs of a task are collected, and their timing.

    ``programs`` that run are collected of every task; the share ``evolved`` of them are mutations
    of the best random programs. Each is timed twice, at least ``apart_s`` seconds apart and in
    another order. If the two timings that agree best differ by more than the share ``agree``, it is
    timed again, up to ``most`` timings in all. ``chunk`` programs are built before they are timed.
    """

    programs: int = 192
    evolved: float = 0.0
    apart_s: float = 120.0
    agree: float = 0.1
    most: int = 4
    chunk: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.programs < 2:
            raise PrunerError(f"programs={self.programs}; use a whole number, 2 or more")
        if not 0 <= self.evolved < 1:
            raise PrunerError(f"pool.evolved={self.evolved}; use a share, 0 or more and below 1")
        if self.apart_s < 0 or not self.agree > 0 or self.most < 2 or self.chunk < 1:
            raise PrunerError(
                "pool: apart_s must be 0 or more, agree above 0, most 2 or more, chunk 1 or more"
            )

    @property
    def num_evolved(self) -> int:
        """Number of programs that are mutations of good programs."""
        return round(self.evolved * self.programs)
