"""Read MetaSchedule's databases as tables, without TVM.

A pair of files, by TVM's names ``database_workload.json`` and ``database_tuning_record.json``,
each plain or compressed. A line of the first is ``[hash, function in base64]``; a line of the
second ``[number of the first's line, [[instructions, decisions], seconds, target, arguments]]``.
All releases of MetaSchedule write them so. Instructions were renamed and got more fields:
:func:`_present` translates them.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from pruner.data.parse import MAX_LATENCY_S
from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.stream import read_lines
from pruner.errors import DataError
from pruner.files import files_below

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
DRAFT_FOLDER, DRAFTS = "drafted", "drafted.json"  # the second in a folder of a network's drafts
_RENAMED = {"GetBlock": "GetSBlock"}
# Fields that instructions got over the releases, with the values that earlier releases meant.
_ATTRIBUTES: dict[str, list[Any]] = {
    "Fuse": [1],  # preserve_unit_iters
    "Split": [1, 0],  # the same, disable_predication
    "ComputeAt": [0, -1],  # preserve_unit_loops, index: behind the last block
    "ReverseComputeAt": [0, -1],
    "Blockize": [1],
    "Tensorize": ["", 1],
}
_CONSUMERS = ("CacheRead", "CacheWrite")  # a list of them became the second input
_POSTPROCESSING = "EnterPostproc"
_HASH = re.compile(r"-?[0-9]{1,20}")  # 64 bits; it becomes part of a file's name
_LENGTH = 8  # bytes before a saved function: its length
_TRIES = 20  # lines of a file that may be damaged before it has no kind


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorkload:
    """A function as TVM saved it: JSON text in `module`."""

    hash: str
    module: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A measured trace; `costs_s` is empty where the measurement failed.

    `trace` is ``[instructions, [[place, decision], ..]]`` in JSON with today's names and without
    postprocessing; `skeleton`, its saved instructions, is equal within a design space; `target` as
    it was saved.
    """

    workload: int
    trace: list[Any]
    skeleton: bytes
    costs_s: tuple[float, ...]
    target: Any
    line: int


def find_databases(logs: Path) -> tuple[list[tuple[Path, Path]], int]:
    """Find pairs (workloads, records) of files below a folder; count its other files.

    The contents name the kind, names tell which of several belong together; a file alone is paired
    with one that is not there. `logs` may also be a file of the pair. Drafts of a network's run are
    left out: nothing measured them.
    """
    if not logs.exists():
        return [], 0
    if logs.is_file() and _kind(logs) is None:
        return [], 1
    files = files_below(logs) if logs.is_dir() else sorted(logs.parent.glob("*"))
    drafts = {path.parent for path in files if path.name == DRAFTS}
    files = [path for path in files if path.parent not in drafts and path.name[0] != "."]
    kinds = {path: _kind(path) for path in files if path.is_file()}
    named = {logs, logs.parent, logs / DRAFT_FOLDER}
    if drafts & named and RECORDS not in kinds.values():
        raise DataError(f"{logs}: drafts of a network, which nothing measured; tune it first")
    workloads = [path for path, kind in kinds.items() if kind == WORKLOADS]
    pairs = []
    for path in (path for path, kind in kinds.items() if kind == RECORDS):
        beside = [other for other in workloads if other.parent == path.parent]
        found = [other for other in beside if _stem(other) == _stem(path)] or beside
        pairs.append((found[0] if len(found) == 1 else path.with_name(WORKLOADS), path))
    alone = {path.parent: path for path in workloads}
    for _, records in pairs:
        alone.pop(records.parent, None)
    for path in alone.values():  # with the file that should hold the records of its workloads
        names = [other for other in path.parent.glob(RECORDS + "*") if other.is_file()]
        pairs.append((path, names[0] if names else path.with_name(RECORDS)))
    if logs.is_file():  # its folder may hold databases of other devices
        return [pair for pair in pairs if logs in pair], 0
    return pairs, sum(kind is None for kind in kinds.values())


def _stem(path: Path) -> str:
    return re.sub(r"workloads?|(tuning_)?records?|\..*", "", path.name)


def _kind(path: Path) -> str | None:
    for _, line, _ in islice(read_lines(path, Quarantine()), _TRIES):
        with suppress(ValueError, RecursionError):
            match json.loads(line):
                case [str(name), str() | dict()] if _HASH.fullmatch(name):
                    return WORKLOADS
                case [int(), [[[*_], [*_]], *_]]:
                    return RECORDS
            return None
    return None


def read_workloads(path: Path, quarantine: Quarantine) -> dict[int, StoredWorkload]:
    """Read functions by line; damaged lines go to `quarantine`."""
    return dict(_lines(path, quarantine, _workload))


def read_records(path: Path, quarantine: Quarantine) -> Iterator[StoredRecord]:
    """Yield measured traces; damaged lines go to `quarantine`."""
    shared: dict[bytes, list[Any]] = {}  # records of a design space share their instructions
    for _, record in _lines(path, quarantine, partial(_record, shared)):
        yield record


def _lines(path: Path, quarantine: Quarantine, parse: Any) -> Iterator[tuple[int, Any]]:
    for number, line, _ in read_lines(path, quarantine):
        try:
            try:
                value = orjson.loads(line)
            except ValueError:  # NaN, or damage
                value = json.loads(line)
            yield number, parse(number, value)
            continue
        except MalformedError as error:
            reason, detail = error.reason, str(error)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            reason, detail = Reason.MALFORMED_JSON, str(error)
        except (ArithmeticError, ValueError, TypeError, LookupError, RecursionError) as error:
            reason, detail = Reason.NOT_A_RECORD, str(error)
        quarantine.add(file=str(path), line=number, reason=reason, detail=detail[:120], text=line)


def _workload(_: int, value: Any) -> StoredWorkload:
    name, packed = value
    if not _HASH.fullmatch(str(name)):
        raise MalformedError(Reason.BAD_FIELD, f"no hash of a function: {name!r:.60}")
    if isinstance(packed, dict):
        return StoredWorkload(hash=str(name), module=json.dumps(packed).encode())
    try:
        content = base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise MalformedError(Reason.BAD_FIELD, f"no base64: {error}") from error
    length, text = int.from_bytes(content[:_LENGTH], "little"), content[_LENGTH:]
    if len(text) < length or not text.startswith(b"{"):
        raise MalformedError(Reason.BAD_FIELD, "no function in it")
    return StoredWorkload(hash=str(name), module=text[:length])


def _record(shared: dict[bytes, list[Any]], number: int, value: Any) -> StoredRecord:
    workload, (trace, costs, target, *_) = value
    instructions, decisions = trace
    if type(workload) is not int or not isinstance(decisions, list):
        raise MalformedError(Reason.BAD_FIELD, "a workload's number and a trace were expected")
    kinds = [step[0] for step in instructions]
    # Postprocessors are not part of the space: the engine applies its own.
    end = kinds.index(_POSTPROCESSING) if _POSTPROCESSING in kinds else len(kinds)
    kept = [[place, value] for place, value in decisions if _integer(place) < end]
    skeleton = orjson.dumps(instructions[:end])
    if skeleton not in shared:
        shared[skeleton] = [_present(*step) for step in instructions[:end]]
    found = tuple(float(cost) for cost in costs or ())
    measured = bool(found) and all(0.0 < cost < MAX_LATENCY_S for cost in found)
    return StoredRecord(
        workload=workload,
        trace=[shared[skeleton], kept],
        skeleton=skeleton,
        costs_s=found if measured else (),
        target=target,
        line=number,
    )


def _present(kind: str, inputs: list[Any], attributes: list[Any], outputs: list[Any]) -> list[Any]:
    kind = _RENAMED.get(kind, kind)
    if kind in _CONSUMERS and len(inputs) == 1:
        inputs = [*inputs, []]
    added = _ATTRIBUTES.get(kind, ())[len(attributes) :]
    return [kind, inputs, [*attributes, *added], outputs]


def decisions_of(record: StoredRecord) -> list[int]:
    """Return the space's decision vector.

    Raises `MalformedError` where a decision is missing, or no integer.
    """
    taken = dict(record.trace[1])
    out: list[int] = []
    for place, step in enumerate(record.trace[0]):
        if str(step[0]).startswith("Sample"):
            if place not in taken:
                raise MalformedError(Reason.BAD_FIELD, f"{step[0]} has no decision")
            value = taken[place]
            out += map(_integer, value if isinstance(value, list) else [value])
    return out


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise MalformedError(Reason.BAD_FIELD, f"a decision {value!r:.40}, which is no integer")
    return value
