"""The one validity rule: which line of a log is a record.

A line is a record when all of this holds:

1. it is one JSON object in UTF-8 with ``i = [[workload_key, target, hardware_params, ...],
   [stages, steps]]`` and ``r = [costs, error_no, all_cost_s, timestamp]`` (record format v0.6;
   further keys and further members of the first list are ignored);
2. the workload key is a JSON list that starts with the operator's name, no size in it beyond 2^31;
   the target is non-empty text; the hardware parameters are integers;
3. every step is of a known kind with the right fields (`pruner.data.steps`), split extents and the
   product of each split's lengths in [1, 2^31];
4. `error_no` is an integer, `all_cost_s` finite and not negative, `timestamp` a finite number;
5. where `error_no` is 0, there is at least one cost and each is in (0 s, 1e5 s).

A record with another `error_no` is a failed measurement: a record with ``valid=False``, whose costs
are filler. A second record of the same program (workload key, target, steps) in one file is a
duplicate; the first valid one counts. Readers apply that part, since it needs memory.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.steps import StepChecker
from pruner.data.stream import read_lines
from pruner.data.workload import parse_workload

MAX_LATENCY_S = 1e5  # tuners write 1e10 s for "failed"; no kernel takes a day


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Header:
    """What all records of one task share. One parser makes one object per task: compare by `is`."""

    workload_key: str
    target: str
    hardware_params: tuple[int, ...]


class ParsedLine(NamedTuple):
    """One valid line. `digest` is 64 bits of the steps; equal `structure` means equal shape."""

    header: Header
    steps: list[list[Any]]
    digest: int
    structure: int
    costs_s: tuple[float, ...]
    error_no: int
    all_cost_s: float
    timestamp: int
    origin: str | None


class LineParser:
    """Parses lines of one or many files; remembers headers and step structures already checked."""

    def __init__(self) -> None:
        self._headers: dict[tuple[str, str, tuple[int, ...]], Header] = {}
        self._steps = StepChecker()

    def parse(self, line: bytes) -> ParsedLine:
        """Apply the validity rule to one line.

        Raises:
            MalformedError: with the reason code and what was found.
        """
        try:
            raw = orjson.loads(line)
        except orjson.JSONDecodeError:
            raw = _loads_with_nan(line)
        if type(raw) is not dict:
            raise MalformedError(Reason.NOT_A_RECORD, f"a JSON {type(raw).__name__}, not an object")
        try:
            inputs, program = raw["i"][:2]
            costs, error_no, all_cost_s, timestamp = raw["r"][:4]
            header = (inputs[0], inputs[1], tuple(inputs[2]))
            steps = program[1]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedError(Reason.MISSING_FIELD, _explain(raw)) from error
        try:
            known = self._headers.get(header) or self._learn_header(header)
        except TypeError as error:  # a list where a name or a number should be
            raise MalformedError(Reason.BAD_FIELD, f"header {header!r:.80}") from error
        text, structure = self._steps.check(steps)
        return ParsedLine(
            header=known,
            steps=steps,
            digest=int.from_bytes(blake2b(text, digest_size=8).digest(), "little"),
            structure=structure,
            costs_s=_costs(costs, error_no),
            error_no=error_no,
            all_cost_s=_seconds(all_cost_s, "all_cost_s"),
            timestamp=int(_seconds(timestamp, "timestamp")),
            origin=_origin(raw),
        )

    def _learn_header(self, header: tuple[Any, Any, tuple[Any, ...]]) -> Header:
        workload_key, target, hardware_params = header
        if not isinstance(workload_key, str):
            raise MalformedError(Reason.BAD_FIELD, "the workload key is not text")
        if not isinstance(target, str) or not target:
            raise MalformedError(Reason.BAD_FIELD, "the target is not text")
        if any(type(number) is not int for number in hardware_params):
            raise MalformedError(Reason.BAD_FIELD, "the hardware parameters are not integers")
        parse_workload(workload_key)
        known = Header(workload_key=workload_key, target=target, hardware_params=hardware_params)
        self._headers[header] = known
        return known


def parse_lines(
    path: Path, quarantine: Quarantine, parser: LineParser | None = None
) -> Iterator[tuple[int, bytes, ParsedLine]]:
    """Yield (0-based line, its bytes, parsed line) of every valid line, duplicates included."""
    parser = parser or LineParser()
    for number, line, ended in read_lines(path, quarantine):
        try:
            parsed = parser.parse(line)
        except MalformedError as error:
            reason = error.reason
            if not ended and reason in (Reason.MALFORMED_JSON, Reason.NOT_UTF8):
                reason = Reason.TRUNCATED_FILE
            quarantine.add(
                file=str(path), line=number, reason=reason, detail=error.detail, text=line
            )
        else:
            yield number, line, parsed


def _loads_with_nan(line: bytes) -> Any:
    """Second opinion of the standard library, which reads NaN and Infinity."""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedError(Reason.NOT_UTF8, f"byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedError(Reason.MALFORMED_JSON, str(error)[:120]) from error


def _explain(raw: dict[str, Any]) -> str:
    for field, form in (
        ("i", "[[workload_key, target, hardware_params, ...], [stages, steps]]"),
        ("r", "[costs, error_no, all_cost_s, timestamp]"),
    ):
        if field not in raw:
            return f'no "{field}"'
        if not isinstance(raw[field], list) or len(raw[field]) < (2 if field == "i" else 4):
            return f'"{field}" is not {form}'
    return '"i" is not [[workload_key, target, hardware_params, ...], [stages, steps]]'


def _costs(costs: Any, error_no: Any) -> tuple[float, ...]:
    if type(error_no) is not int:
        raise MalformedError(Reason.BAD_FIELD, f"error_no is {error_no!r:.40}")
    if type(costs) is not list:
        raise MalformedError(Reason.BAD_FIELD, "the costs are not a list")
    if error_no != 0:
        return tuple(float(cost) for cost in costs if type(cost) in (float, int))
    if not costs:
        raise MalformedError(Reason.BAD_COST, "measured without error, but no cost")
    for cost in costs:
        # The comparison is false for NaN too.
        if type(cost) not in (float, int) or not 0.0 < cost < MAX_LATENCY_S:
            raise MalformedError(Reason.BAD_COST, f"cost {cost!r:.40} s")
    return tuple(map(float, costs))


def _seconds(value: Any, name: str) -> float:
    if type(value) not in (float, int) or not isfinite(value) or value < 0:
        raise MalformedError(Reason.BAD_FIELD, f"{name} is {value!r:.40}")
    return float(value)


def _origin(raw: dict[str, Any]) -> str | None:
    origin = raw.get("origin")
    if origin is not None and not isinstance(origin, str):
        raise MalformedError(Reason.BAD_FIELD, f"origin is {origin!r:.40}")
    return origin
