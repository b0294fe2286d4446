"""Records one by one, streamed: the reader for logs that may not fit in memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.data.parse import LineParser, ParsedLine
from pruner.data.quarantine import MalformedError, Quarantine, Reason
from pruner.data.stream import read_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One program that a tuner built and ran (or failed to).

    `costs_s` are the repeated timings (filler where the measurement failed), `all_cost_s` what
    building and measuring cost the tuner, `timestamp` is in Unix seconds, `line` is 0-based,
    `origin` is how the schedule was found (``"random"``, ``"evolved"``) where the log says so.
    """

    workload_key: str
    target: str
    hardware_params: tuple[int, ...]
    steps: list[list[Any]]
    costs_s: tuple[float, ...]
    error_no: int
    all_cost_s: float
    timestamp: int
    file: str
    line: int
    origin: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the program ran; failed measurements have label 0."""
        return self.error_no == 0

    @property
    def latency_s(self) -> float:
        """Mean of the timings in seconds; infinite where the measurement failed."""
        return mean_latency_s(self.costs_s) if self.error_no == 0 else math.inf


def mean_latency_s(costs_s: tuple[float, ...]) -> float:
    """Arithmetic mean of the repeated timings, in seconds."""
    return sum(costs_s) / len(costs_s)


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


def read_measurements(path: Path | str, quarantine: Quarantine) -> Iterator[Measurement]:
    """Stream the records of one file (plain, gzip, xz or zstd), in file order.

    Lines that break the validity rule (`pruner.data.parse`) go to `quarantine`, as do duplicates:
    later records of a program already yielded. One exception keeps this streaming: a valid record
    is yielded even after a failed one of the same program. `pruner.data.tasks.read_tasks`, which
    holds a whole task, then drops the failed one.
    """
    path = Path(path)
    ran: dict[tuple[Any, int], bool] = {}
    for number, line, parsed in parse_lines(path, quarantine):
        program = (parsed.header, parsed.digest)
        valid = parsed.error_no == 0
        earlier = ran.get(program)
        if earlier is not None and earlier >= valid:  # the earlier one ran, or both failed
            quarantine.add(file=str(path), line=number, reason=Reason.DUPLICATE, text=line)
            continue
        ran[program] = valid
        yield Measurement(
            workload_key=parsed.header.workload_key,
            target=parsed.header.target,
            hardware_params=parsed.header.hardware_params,
            steps=parsed.steps,
            costs_s=parsed.costs_s,
            error_no=parsed.error_no,
            all_cost_s=parsed.all_cost_s,
            timestamp=parsed.timestamp,
            file=str(path),
            line=number,
            origin=parsed.origin,
        )
