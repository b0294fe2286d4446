"""Read MetaSchedule's databases as tables, without TVM.

``database_workload.json`` and ``database_tuning_record.json``, or any pair of files that end so. A
line of the first is ``[hash, function in base64]``; a line of the second ``[number of the first's
line, [[instructions, decisions], seconds, target, arguments]]``. All releases of MetaSchedule write
them so; the names of instructions changed, and :data:`RENAMED` gives today's.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.data.parse import MAX_LATENCY_S
from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.stream import read_lines

WORKLOADS, RECORDS = "workload.json", "tuning_record.json"
RENAMED = {"GetBlock": "GetSBlock"}
_POSTPROCESSING = "EnterPostproc"
_HASH = re.compile(r"-?[0-9]{1,20}")  # 64 bits; it becomes part of a file's name
_LENGTH = 8  # bytes before a saved function: its length


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorkload:
    """A function as TVM saved it: JSON text in `module`."""

    hash: str
    module: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A measured trace; `costs_s` is empty where the measurement failed.

    `trace` is ``[instructions, [[place, decision], ..]]`` in JSON with today's names and without
    postprocessing; `target` as it was saved.
    """

    workload: int
    trace: list[Any]
    costs_s: tuple[float, ...]
    target: Any
    line: int


def find_databases(folder: Path) -> list[tuple[Path, Path]]:
    """Return pairs (workloads, records) of files below the folder."""
    found = sorted(folder.rglob(f"*{RECORDS}")) if folder.is_dir() else []
    pairs = [(path.with_name(path.name.removesuffix(RECORDS) + WORKLOADS), path) for path in found]
    return [pair for pair in pairs if pair[0].is_file()]


def read_workloads(path: Path, quarantine: Quarantine) -> dict[int, StoredWorkload]:
    """Read functions by line; damaged lines go to `quarantine`."""
    return dict(_lines(path, quarantine, _workload))


def read_records(path: Path, quarantine: Quarantine) -> Iterator[StoredRecord]:
    """Yield measured traces; damaged lines go to `quarantine`."""
    for _, record in _lines(path, quarantine, _record):
        yield record


def _lines(path: Path, quarantine: Quarantine, parse: Any) -> Iterator[tuple[int, Any]]:
    for number, line, _ in read_lines(path, quarantine):
        try:
            yield number, parse(number, json.loads(line))
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            RecursionError,
            MalformedError,
        ) as error:
            quarantine.add(
                file=str(path),
                line=number,
                reason=_reason(error),
                detail=str(error)[:120],
                text=line,
            )


def _reason(error: Exception) -> Reason:
    if isinstance(error, MalformedError):
        return error.reason
    known = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
    return Reason.MALFORMED_JSON if known else Reason.NOT_A_RECORD


def _workload(_: int, value: Any) -> StoredWorkload:
    name, packed = value
    if not _HASH.fullmatch(str(name)):
        raise MalformedError(Reason.BAD_FIELD, f"no hash of a function: {name!r:.60}")
    try:
        content = base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise MalformedError(Reason.BAD_FIELD, f"no base64: {error}") from error
    length, text = int.from_bytes(content[:_LENGTH], "little"), content[_LENGTH:]
    if len(text) < length or not text.startswith(b"{"):
        raise MalformedError(Reason.BAD_FIELD, "no function in it")
    return StoredWorkload(hash=str(name), module=text[:length])


def _record(number: int, value: Any) -> StoredRecord:
    workload, (trace, costs, target, *_) = value
    instructions, decisions = trace
    if type(workload) is not int or not isinstance(decisions, list):
        raise MalformedError(Reason.BAD_FIELD, "a workload's number and a trace were expected")
    renamed = [[RENAMED.get(kind, kind), *rest] for kind, *rest in instructions]
    kinds = [step[0] for step in renamed]
    # Postprocessors are not part of the space: the engine applies its own.
    end = kinds.index(_POSTPROCESSING) if _POSTPROCESSING in kinds else len(kinds)
    kept = [[int(place), value] for place, value in decisions if int(place) < end]
    found = tuple(float(cost) for cost in costs or ())
    measured = bool(found) and all(0.0 < cost < MAX_LATENCY_S for cost in found)
    return StoredRecord(
        workload=workload,
        trace=[renamed[:end], kept],
        costs_s=found if measured else (),
        target=target,
        line=number,
    )


def skeleton(record: StoredRecord) -> str:
    """Return the trace without decisions, equal within a design space."""
    return json.dumps(record.trace[0])


def decisions_of(record: StoredRecord) -> list[int]:
    """Return the sampling decisions in order: the space's decision vector.

    Raises `MalformedError` where a sampling instruction has no decision.
    """
    taken = dict(record.trace[1])
    out: list[int] = []
    for place, step in enumerate(record.trace[0]):
        if str(step[0]).startswith("Sample"):
            if place not in taken:
                raise MalformedError(Reason.BAD_FIELD, f"{step[0]} has no decision")
            value = taken[place]
            out += [int(one) for one in value] if isinstance(value, list) else [int(value)]
    return out
