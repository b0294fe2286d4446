"""The table of a run: one JSON line for every measured candidate, written at once.

A kill loses at most the candidate in flight: an incomplete last line is cut off when the run goes
on; readers pass over it. ``pandas.read_json(path, lines=True)`` reads it.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

JOURNAL_FILE = "trials.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was measured, or only compiled.

    ``batch`` and ``position`` say when it was proposed; ``space`` and ``decisions`` which program
    it is; ``costs_s`` all repeats; ``error`` the kind of failure; ``elapsed_s`` seconds of tuning
    when its result was there; ``timestamp`` seconds since 1970. ``compiled_only``: it never ran.
    """

    task: str
    trial: int
    batch: int
    position: int
    space: int
    decisions: list[int]
    costs_s: list[float]
    error: str | None
    message: str
    build_s: float
    run_s: float
    elapsed_s: float
    timestamp: float
    extra: dict[str, Any] = field(default_factory=dict)
    compiled_only: bool = False

    @property
    def latency_s(self) -> float:
        """Mean of the repeats; infinite for a failure and for what never ran."""
        known = self.error is None and not self.compiled_only
        return float(np.mean(self.costs_s)) if known else float("inf")


class Journal:
    """Appends trials; ``rows`` are those of earlier starts of the run."""

    def __init__(self, path: Path) -> None:
        cut_incomplete_line(path)
        self.rows = read_trials(path)
        self._file = path.open("ab", buffering=0)

    def append(self, trial: Trial) -> None:
        """Write one line and have it on the disk."""
        self._file.write(orjson.dumps(dataclasses.asdict(trial)) + b"\n")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut_incomplete_line(path: Path) -> None:
    """Remove what a kill left behind the last newline."""
    if not path.is_file():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete != len(data):
        os.truncate(path, complete)


def read_trials(path: Path) -> list[Trial]:
    """All complete lines of a journal; none where there is no file."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    return [Trial(**orjson.loads(line)) for line in data[: data.rfind(b"\n") + 1].splitlines()]
