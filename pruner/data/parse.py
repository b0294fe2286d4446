"""The validity rule: decide which line of a log is a record.

A line is a record when all of this holds:

1. it is one JSON object in UTF-8 with ``i = [[workload_key, target, hardware_params, ...],
   [stages, steps]]`` and ``r = [costs, error_no, all_cost_s, timestamp]`` (record formats v0.2 to
   v0.6: further keys and further members of the first list are ignored, and formats before v0.4
   may have no hardware parameters);
2. the workload key is a JSON list that starts with the operator's name, no size in it beyond 2^31;
   the target is non-empty text; the hardware parameters are integers; no key is written twice;
3. every step is of a known kind with the right fields (`pruner.data.steps`), split extents in
   [0, 2^31] (0: not inferred) and the product of each split's lengths in [1, 2^31];
4. `error_no` is an integer, `all_cost_s` finite and not negative, `timestamp` a finite number;
5. where `error_no` is 0, there is at least one cost and each is in (0 s, 1e5 s);
6. nothing is longer, deeper or larger than `pruner.data.limits` allows.

A record with another `error_no` is a failed measurement: a record with ``valid=False``, whose costs
are filler. A second record of the same program (workload key, target, steps) in one file is a
duplicate; the first valid one counts. Readers apply that part, since it needs memory.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple

import orjson

from pruner.data.limits import MAX_HARDWARE_PARAMS, MAX_INTEGER, MAX_TEXT_CHARS
from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.steps import StepChecker
from pruner.data.stream import read_lines
from pruner.data.workload import parse_workload

MAX_LATENCY_S = 1e5  # tuners write 1e10 s for "failed"; no kernel takes a day

_WITHOUT_HARDWARE = ("v0.1", "v0.2", "v0.3")  # record formats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Header:
    """The fields common to all records of one task; compare by `is`."""

    workload_key: str
    target: str
    hardware_params: tuple[int, ...]


class ParsedLine(NamedTuple):
    """A valid line, parsed.

    `digest` is 64 bits of the steps; equal `structure` means equal shape. `timings`: repeats of
    every timing, where the line has ``"timings": [[time, [cost, ..]], ..]``: timings are minutes
    apart, repeats inside a timing are not (docs/pools.md).
    """

    header: Header
    steps: list[list[Any]]
    digest: int
    structure: int
    costs_s: tuple[float, ...]
    error_no: int
    all_cost_s: float
    timestamp: int
    origin: str | None
    timings: tuple[tuple[float, ...], ...] = ()


class LineParser:
    """Parses lines of files; caches headers and step structures already checked."""

    def __init__(self) -> None:
        # with the colons in the texts of each: see `_refuse_doubled_keys`
        self._headers: dict[tuple[str, str, tuple[int, ...]], tuple[Header, int]] = {}
        self._steps = StepChecker()

    def parse(self, line: bytes) -> ParsedLine:
        """Parse a line by the validity rule; raises `MalformedError` with the reason code."""
        try:
            return self._parse(line)
        except (MalformedError, MemoryError):
            raise
        except Exception as error:  # a bad line is skipped, never the file
            detail = f"{type(error).__name__}: {error}"[:120]
            raise MalformedError(Reason.BAD_LINE, detail) from error

    def _parse(self, line: bytes) -> ParsedLine:
        try:
            raw = orjson.loads(line)
        except orjson.JSONDecodeError:
            raw = _loads_with_nan(line)
        if type(raw) is not dict:
            raise MalformedError(Reason.NOT_A_RECORD, f"a JSON {type(raw).__name__}, not an object")
        try:
            inputs, program = raw["i"][:2]
            costs, error_no, all_cost_s, timestamp = raw["r"][:4]
            bare = len(inputs) == 2 and raw["v"] in _WITHOUT_HARDWARE
            header = (inputs[0], inputs[1], () if bare else tuple(inputs[2]))
            steps = program[1]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedError(Reason.MISSING_FIELD, _explain(raw)) from error
        try:
            known, colons = self._headers.get(header) or self._learn_header(header)
        except TypeError as error:  # a list where a name or a number should be
            raise MalformedError(Reason.BAD_FIELD, f"header {header!r:.80}") from error
        # Each key has a colon of its own: no more of them, no key twice. An escape can hide one.
        if line.count(b":") != len(raw) + colons or (colons and b"\\u" in line):
            _refuse_doubled_keys(line)
        text, structure = self._steps.check(steps)
        return ParsedLine(  # by place: by name it takes a microsecond more
            known,
            steps,
            int.from_bytes(blake2b(text, digest_size=8).digest(), "little"),
            structure,
            _costs(costs, error_no),
            error_no,
            _seconds(all_cost_s, "all_cost_s"),
            int(_seconds(timestamp, "timestamp", MAX_INTEGER)),
            _origin(raw),
            _timings(raw) if "timings" in raw else (),
        )

    def _learn_header(self, header: tuple[Any, Any, tuple[Any, ...]]) -> tuple[Header, int]:
        workload_key, target, hardware_params = header
        if not isinstance(workload_key, str):
            raise MalformedError(Reason.BAD_FIELD, "the workload key is not text")
        if not isinstance(target, str) or not 0 < len(target) <= MAX_TEXT_CHARS:
            raise MalformedError(Reason.BAD_FIELD, f"the target is no text up to {MAX_TEXT_CHARS}")
        if len(hardware_params) > MAX_HARDWARE_PARAMS or any(
            type(number) is not int or abs(number) > MAX_INTEGER for number in hardware_params
        ):
            raise MalformedError(Reason.BAD_FIELD, "the hardware parameters are not integers")
        parse_workload(workload_key)
        known = Header(workload_key=workload_key, target=target, hardware_params=hardware_params)
        colons = workload_key.count(":") + target.count(":")
        self._headers[header] = known, colons
        return known, colons


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
            elif _is_autotvm(line):
                reason = Reason.AUTOTVM
            quarantine.add(
                file=str(path), line=number, reason=reason, detail=error.detail, text=line
            )
        else:
            yield number, line, parsed


def _is_autotvm(line: bytes) -> bool:
    """Recognise AutoTVM's log formats 0.1 and 0.2.

    0.1: {"i": [target, template, ..], ..}; 0.2: {"input": [target, template, ..], "config": ..}.
    """
    with suppress(ValueError, RecursionError):
        match json.loads(line):
            case {"i": [str(), str(), *_]} | {"input": [str(), str(), *_], "config": _}:
                return True
    return False


def _loads_with_nan(line: bytes) -> Any:
    try:
        raw = json.loads(line.decode("utf-8"))
        orjson.dumps(raw)  # refuses lone surrogates and 65-bit integers, as other readers do
    except UnicodeDecodeError as error:
        raise MalformedError(Reason.NOT_UTF8, f"byte {error.start}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedError(Reason.MALFORMED_JSON, str(error)[:120]) from error
    return raw


def _refuse_doubled_keys(line: bytes) -> None:
    """Refuse a line with a key written twice, which readers understand differently."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise MalformedError(Reason.DOUBLED_KEY, f"{name[:40]!r} is written twice")
            seen.add(name)

    json.loads(line, object_pairs_hook=once)


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
    if type(error_no) is not int or abs(error_no) > MAX_INTEGER:
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


def _seconds(value: Any, name: str, largest: float = float_info.max) -> float:
    # The comparison is false for NaN too.
    if type(value) not in (float, int) or not 0 <= value < largest:
        raise MalformedError(Reason.BAD_FIELD, f"{name} is {value!r:.40}")
    return float(value)


def _timings(raw: dict[str, Any]) -> tuple[tuple[float, ...], ...]:
    try:
        return tuple(_costs(costs, 0) for _, costs in raw["timings"])
    except (TypeError, ValueError) as error:
        raise MalformedError(Reason.BAD_FIELD, "timings are no [[time, [cost, ..]], ..]") from error


def _origin(raw: dict[str, Any]) -> str | None:
    origin = raw.get("origin")
    if origin is not None and not isinstance(origin, str):
        raise MalformedError(Reason.BAD_FIELD, f"origin is {origin!r:.40}")
    return origin
