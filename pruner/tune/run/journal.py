"""The table of a run: one JSON line for every measured candidate, written at once.

It is the truth of a run: the database and the state of the search are made from it where they lack
something. A kill loses at most the candidate in flight: an incomplete last line is cut off when the
run goes on; readers pass over it. Every line carries a checksum, and one that is damaged costs
itself. ``pandas.read_json(path, lines=True)`` reads it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from pruner.errors import PrunerError
from pruner.files import append_line, names_to_disk, own_file, sealed, unsealed
from pruner.progress import Tell, silent
from pruner.tune.measure.numerics import are_timings

JOURNAL_FILE = "trials.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was measured, or only compiled.

    ``batch`` and ``position`` say when it was proposed; ``space`` and ``decisions`` which program
    it is; ``costs_s`` all repeats; ``error`` the kind of failure; ``elapsed_s`` seconds of tuning
    when its result was there; ``timestamp`` seconds since 1970. ``compiled_only``: it never ran.
    ``checked``: its results were compared with the reference, and are right. ``record``: what TVM's
    database has of a program that ran, as JSON.
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
    checked: bool = False
    record: str | None = None

    @property
    def latency_s(self) -> float:
        """Mean of the repeats; infinite for a failure and for what never ran."""
        known = self.error is None and not self.compiled_only
        return float(np.mean(self.costs_s)) if known else float("inf")


class Journal:
    """Appends trials; ``rows`` are those of earlier starts of the run."""

    def __init__(self, path: Path, tell: Tell = silent) -> None:
        """`tell` hears of damaged lines.

        Raises:
            PrunerError: another process writes it, or it is a link.
        """
        self._path = path
        self._file = own_file(path).open("ab", buffering=0)
        try:
            with suppress(OSError):  # a file system without locks
                _lock(self._file, path)
        except PrunerError:
            self._file.close()
            raise
        names_to_disk(path.parent)
        cut_incomplete_line(path)
        self.rows = read_trials(path, tell)

    def append(self, trial: Trial) -> None:
        """Write one line and have it on the disk.

        Raises:
            OSError: that was not possible; what came of it is cut off by the next start.
        """
        append_line(self._file, sealed(orjson.dumps(dataclasses.asdict(trial))), self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PrunerError(f"{path}: another process writes it; wait until it has ended") from error


def cut_incomplete_line(path: Path) -> None:
    """Remove what a kill left behind the last newline."""
    if not path.is_file():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete != len(data):
        os.truncate(path, complete)


def read_trials(path: Path, tell: Tell = silent) -> list[Trial]:
    """All complete lines of a journal; none where there is no file.

    A damaged line is told with its number, and is as if it had not been measured.
    """
    if not path.is_file():
        return []
    data, found, known = path.read_bytes(), [], set()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n")[:-1], start=1):
        try:
            trial = read_trial(line)
            if trial.trial in known:
                raise ValueError(f"trial {trial.trial} once more")
        except ValueError as error:
            tell(f"{path}, line {number}: {error}; it counts as not measured")
            continue
        known.add(trial.trial)
        found.append(trial)
    return found


def read_trial(line: bytes) -> Trial:
    """One line of a journal. Raises `ValueError` where it is damaged, or no trial."""
    row = orjson.loads(unsealed(line))
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    odd = row.keys() - _KINDS.keys() or _NEEDED - row.keys()
    odd = odd or {name for name, value in row.items() if not _KINDS[name](value)}
    if odd:
        raise ValueError(f"its {min(odd)} is missing, unknown or of the wrong kind")
    if row["error"] is None and not row.get("compiled_only") and not are_timings(row["costs_s"]):
        raise ValueError("its costs_s are no seconds above 0")
    return Trial(**row)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


def _all(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(type(item) in kinds for item in value)


_INT, _NUMBER, _TEXT = _is(int), _is(int, float), _is(str)
_KINDS: dict[str, Callable[[Any], bool]] = {
    "task": _TEXT,
    "trial": _INT,
    "batch": _INT,
    "position": _INT,
    "space": _INT,
    "decisions": _all(int),
    "costs_s": _all(int, float),
    "error": _is(str, type(None)),
    "message": _TEXT,
    "build_s": _NUMBER,
    "run_s": _NUMBER,
    "elapsed_s": _NUMBER,
    "timestamp": _NUMBER,
    "extra": _is(dict),
    "compiled_only": _is(bool),
    "checked": _is(bool),
    "record": _is(str, type(None)),
}
_NEEDED = {
    one.name
    for one in dataclasses.fields(Trial)
    if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
}
