"""The log of a pool: a JSON line for each draw, build, timing, reading.

It is the complete content of a pool. A damaged line is an error: others refer to its programs.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import DataError
from pruner.files import JsonLines, complete_lines, json_of
from pruner.processes import Reply
from pruner.tune.measure.measurer import Outcome

RANDOM, EVOLVED = "random", "evolved"
REFUSED = "refused"  # by TVM, before anything is built


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A timing of a program: Unix time, repeats, and total duration."""

    at: float
    costs_s: tuple[float, ...]
    seconds: float

    @property
    def latency_s(self) -> float:
        """Median of the repeats, in seconds."""
        return float(np.median(self.costs_s))


@dataclass(slots=True, kw_only=True)
class Program:
    """A drawn program: ``row`` is its design space and its decisions.

    ``error``: the kind of its last failure. ``built``: its library was there once; ``tries``: how
    often it was run or could not be built. ``checked``: its results were compared with the
    unscheduled program's, and are right; None in measurement logs of versions that lack it.
    """

    number: int
    row: list[int]
    origin: str
    built: bool = False
    build_s: float = 0.0
    error: str | None = None
    passes: list[Pass] = field(default_factory=list)
    tries: int = 0
    last_at: float = 0.0
    checked: bool | None = None

    @property
    def valid(self) -> bool:
        """True if it ran."""
        return bool(self.passes)

    @property
    def failed(self) -> bool:
        """True if it was tried, and never ran."""
        return self.error is not None and not self.passes

    @property
    def has_record(self) -> bool:
        """True if it ran or failed running; False if TVM rejected it."""
        return self.valid or (self.failed and self.error != REFUSED)

    @property
    def closest(self) -> tuple[Pass, ...]:
        """The two timings that agree best, by time; or the only timing.

        A disturbed timing is slower, and by chance: of several timings the undisturbed ones agree.
        """
        order = sorted(self.passes, key=lambda one: one.latency_s)
        pairs = list(pairwise(order))
        if not pairs:
            return tuple(order)
        best = min(pairs, key=lambda pair: pair[1].latency_s / pair[0].latency_s)
        return tuple(sorted(best, key=lambda one: one.at))

    @property
    def disagreement(self) -> float:
        """The excess of the slower of the two closest timings, a share."""
        kept = sorted(one.latency_s for one in self.closest)
        return kept[-1] / kept[0] - 1.0 if len(kept) > 1 else float("inf")

    @property
    def seconds(self) -> float:
        """Seconds of building and timing."""
        return self.build_s + sum(one.seconds for one in self.passes)


class MeasurementLog:
    """The programs of a pool; ``spaces`` names its design spaces by number.

    ``ended``: why no more programs of an origin are tried.
    """

    def __init__(self, path: Path) -> None:
        """Read a measurement log; raise `DataError` where it is damaged."""
        self.path, self._lines = path, JsonLines(path)
        self.programs: list[Program] = []
        self.spaces: list[str] = []
        self.conditions: list[dict[str, float]] = []
        self.ended: dict[str, str] = {}
        for number, line in enumerate(complete_lines(path), start=1):
            try:
                self._take(json_of(line))
            except (LookupError, TypeError, ValueError) as error:  # also without a checksum
                message = " ".join(str(error).split())[:120]
                raise DataError(
                    f"{path}: damaged (line {number}: {message}); delete it, and its task is "
                    "measured again"
                ) from error

    def open_spaces(self, names: Iterable[str]) -> None:
        """Write the design spaces of a new pool."""
        self._write({"spaces": list(names)})

    def draw(self, rows: np.ndarray, origin: str) -> None:
        """Write programs that are to be measured, int64 [n, d]."""
        if len(rows):
            self._write({"origin": origin, "rows": rows.tolist()})

    def end(self, origin: str, reason: str) -> None:
        """Write that no more programs of an origin are tried."""
        self._write({"ended": origin, "reason": reason})

    def built(self, number: int, reply: Reply) -> None:
        """Write that a library was built, or the error."""
        error = None if reply.error is None else f"build_{reply.error}"
        self._write({
            "program": number, "built": reply.error is None, "error": error,
            "message": reply.message, "seconds": round(reply.seconds, 4),
        })  # fmt: skip

    def refused(self, number: int) -> None:
        """Write that TVM refused to make the schedule."""
        self._write({"program": number, "built": False, "error": REFUSED, "seconds": 0.0})

    def timed(self, number: int, outcome: Outcome) -> None:
        """Write a timing or its error; the first has the check's result."""
        first = not self.programs[number].passes
        self._write({
            "program": number, "costs_s": list(outcome.costs_s), "error": outcome.error,
            "message": outcome.message, "seconds": round(outcome.run_s, 4), "at": time.time(),
            **({"checked": outcome.checked} if first and outcome.error is None else {}),
        })  # fmt: skip

    def note(self, conditions: dict[str, float]) -> None:
        """Write a reading of the machine."""
        self._write({"conditions": conditions})

    def _write(self, entry: dict[str, Any]) -> None:
        # the file first: memory never has more than a later start reads
        self._lines.append(entry)
        self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "spaces" in entry:
            self.spaces = list(entry["spaces"])
        elif "conditions" in entry:
            self.conditions.append(entry["conditions"])
        elif "ended" in entry:
            self.ended[entry["ended"]] = entry["reason"]
        elif "rows" in entry:
            first = len(self.programs)
            self.programs += [
                Program(number=first + place, row=row, origin=entry["origin"])
                for place, row in enumerate(entry["rows"])
            ]
        else:
            self._result(self.programs[entry["program"]], entry)

    @staticmethod
    def _result(program: Program, entry: Mapping[str, Any]) -> None:
        if entry["error"] is not None:
            program.error = entry["error"]
        if "built" in entry:
            program.built, program.build_s = entry["built"], entry["seconds"]
            program.tries += not program.built
            return
        program.tries, program.last_at = program.tries + 1, entry["at"]
        if entry["error"] is None:
            program.checked = entry.get("checked", program.checked)
            program.passes.append(
                Pass(at=entry["at"], costs_s=tuple(entry["costs_s"]), seconds=entry["seconds"])
            )
