"""Read complete tasks as arrays, for the program and feature packages."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, UInt64

from pruner.data.limits import MAX_HELD_BYTES
from pruner.data.parse import Header, LineParser, ParsedLine, parse_lines
from pruner.data.quarantine import Quarantine, Reason
from pruner.data.workload import ParsedKey, fused_from_name, parse_workload

log = logging.getLogger(__name__)

Duplicates = Literal["drop", "keep"]
COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
_FROZEN: list[bool] = []  # see `_others_froze`


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskKey:
    """Key of a task: a workload, target, file and platform."""

    platform: str
    task: str
    workload_key: str
    target: str
    fused: tuple[str, ...] = ()

    @property
    def workload(self) -> ParsedKey:
        """Parsed workload key."""
        return parse_workload(self.workload_key)

    @property
    def identity(self) -> str:
        """Identity of the work on any platform (`ParsedKey.identity`), for splits."""
        return self.workload.identity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskRecords:
    """All records of one task, row by row in file order.

    Columns have N rows: `line` (0-based), `latency_s` (mean of the timings; infinite where the
    measurement failed), `error_no`, `all_cost_s` (seconds the tuner spent), `timestamp` (Unix
    seconds), `digest` (64 bits of the steps; equal for equal programs), `structure` (equal numbers:
    the steps differ in numbers only). `costs_s` keeps every timing, `origin` how the schedule was
    found, where known. `timings`: repeats of timings minutes apart, where the records have them.
    """

    key: TaskKey
    file: str
    hardware_params: tuple[int, ...]
    steps: list[list[list[Any]]]
    costs_s: list[tuple[float, ...]]
    origin: list[str | None]
    timings: list[tuple[tuple[float, ...], ...]]
    line: Int64[np.ndarray, " row"]
    latency_s: Float64[np.ndarray, " row"]
    error_no: Int64[np.ndarray, " row"]
    all_cost_s: Float64[np.ndarray, " row"]
    timestamp: Int64[np.ndarray, " row"]
    digest: UInt64[np.ndarray, " row"]
    structure: Int32[np.ndarray, " row"]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def workload_key(self) -> str:
        """Raw workload key, as logged."""
        return self.key.workload_key

    @property
    def target(self) -> str:
        """Raw target text, as logged."""
        return self.key.target

    @property
    def fused(self) -> tuple[str, ...]:
        """Operators fused behind the main operator, as ``("add", "relu")``."""
        return self.key.fused

    @property
    def valid(self) -> Bool[np.ndarray, " row"]:
        """Rows that were measured without error, bool [N]."""
        return self.error_no == 0

    @property
    def timed_s(self) -> Float64[np.ndarray, "row 2"]:
        """Medians of the first two timings, float64 [N, 2], NaN for fewer timings."""
        out = np.full((len(self), 2), np.nan)
        for place in range(2):
            # Together where they have equally many repeats: the median of a row takes microseconds.
            rows: dict[int, list[int]] = {}
            for row, passes in enumerate(self.timings):
                if len(passes) > 1:
                    rows.setdefault(len(passes[place]), []).append(row)
            for some in rows.values():
                out[some, place] = np.median([self.timings[row][place] for row in some], axis=1)
        return out

    @property
    def best_s(self) -> float:
        """Best latency of the task in seconds; infinite when nothing ran."""
        return float(np.min(self.latency_s, initial=np.inf))

    def select(self, rows: np.ndarray) -> Self:
        """Return the given rows (Boolean mask or positions), in that order."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else rows
        chosen: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                chosen[name] = column[positions]
            elif isinstance(column, list):
                chosen[name] = [column[row] for row in positions]
        return replace(self, **chosen)


def task_name(path: Path) -> str:
    """Return a record file's task: its name without suffixes."""
    name = path.name
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix(".json")


def read_tasks(
    path: Path | str,
    quarantine: Quarantine,
    *,
    platform: str = "",
    task: str | None = None,
    duplicates: Duplicates = "drop",
    parser: LineParser | None = None,
) -> list[TaskRecords]:
    """Read a record file; return an item per task in it.

    A task is a (workload, target, hardware parameters). A file usually holds one task; logs of
    whole networks mix many, and a task measured in two campaigns may carry two target texts, whose
    latencies must not be compared. Of several records of one program the first valid record stays
    (``duplicates="drop"``) and the others go to `quarantine` with all lines that break the validity
    rule; ``"keep"`` keeps all rows. `task` names the task when the file name does not; pass one
    `parser` for many files to save repeated checks.
    """
    path = Path(path)
    task = task_name(path) if task is None else task
    with without_cycle_search():
        rows = _collect(path, quarantine, duplicates, parser)
    return [_assemble(platform, task, path, header, found) for header, found in rows.items()]


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Pause the cyclic collector, which doubles the time of reading, in the body.

    Freezing and thawing moves the new objects into the oldest generation unvisited; young objects
    of the caller are collected first, and do not go there.
    """
    was_enabled = gc.isenabled()
    moves = was_enabled and not _others_froze()  # objects frozen by others stay frozen
    if moves:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if moves:
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def _others_froze() -> bool:
    """Return whether the collector has frozen objects.

    A count visits every frozen object: once there are any, they are not counted again.
    """
    if not _FROZEN and gc.get_freeze_count():
        _FROZEN.append(True)
    return bool(_FROZEN)


def _collect(
    path: Path, quarantine: Quarantine, duplicates: Duplicates, parser: LineParser | None
) -> dict[Header, list[tuple[int, ParsedLine]]]:
    rows: dict[Header, list[tuple[int, ParsedLine]]] = {}
    kept: dict[tuple[Header, int], int] = {}  # program -> position among its task's rows
    held = 0
    for number, line, parsed in parse_lines(path, quarantine, parser):
        held += len(line)
        if held > MAX_HELD_BYTES:
            quarantine.add(
                file=str(path),
                line=number,
                reason=Reason.FILE_TOO_LARGE,
                detail=f"records up to here have {MAX_HELD_BYTES} bytes; divide the file",
            )
            break
        task_rows = rows.setdefault(parsed.header, [])
        if duplicates == "drop":
            program = (parsed.header, parsed.digest)
            position = kept.setdefault(program, len(task_rows))
            if position < len(task_rows):
                earlier, first = task_rows[position]
                if first.error_no != 0 and parsed.error_no == 0:
                    # The failed attempt goes, the valid record takes its place.
                    task_rows[position] = (number, parsed)
                    number, line = earlier, b""
                quarantine.add(file=str(path), line=number, reason=Reason.DUPLICATE, text=line)
                continue
        task_rows.append((number, parsed))
    return rows


def _assemble(
    platform: str, task: str, path: Path, header: Header, rows: list[tuple[int, ParsedLine]]
) -> TaskRecords:
    rows.sort(key=lambda row: row[0])
    # Field by field: reading each field of every row took twice as long.
    _, steps, digest, structure, costs_s, error_no, all_cost_s, timestamp, origin, timings = zip(
        *[row[1] for row in rows], strict=True
    )
    latency_s = [
        sum(costs) / len(costs) if error == 0 else np.inf
        for costs, error in zip(costs_s, error_no, strict=True)
    ]
    return TaskRecords(
        key=TaskKey(
            platform=platform,
            task=task,
            workload_key=header.workload_key,
            target=header.target,
            # the name of another operator is its own: foo_relu has no relu behind it
            fused=fused_from_name(task) if parse_workload(header.workload_key).operator else (),
        ),
        file=str(path),
        hardware_params=header.hardware_params,
        steps=list(steps),
        costs_s=list(costs_s),
        origin=list(origin),
        timings=list(timings),
        line=np.array([row[0] for row in rows], dtype=np.int64),
        latency_s=np.array(latency_s, dtype=np.float64),
        error_no=np.array(error_no, dtype=np.int64),
        all_cost_s=np.array(all_cost_s, dtype=np.float64),
        timestamp=np.array(timestamp, dtype=np.int64),
        digest=np.array(digest, dtype=np.uint64),
        structure=np.array(structure, dtype=np.int32),
    )
