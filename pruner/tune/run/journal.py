"""The journal of a run: a JSON line for each candidate, written at once.

A damaged line counts as not measured. Ansor's process writes it, too: only NumPy is imported.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from pruner.files import complete_lines, json_of
from pruner.progress import Log, silent
from pruner.tune.measure.numerics import are_timings, size_bytes

JOURNAL_FILE = "trials.jsonl"
SNAPSHOT_FILE = "state.npz"  # arrays and JSON, which execute nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate that was measured, or only compiled.

    ``batch`` and ``position`` are the proposal; ``space`` and ``decisions`` the program;
    ``costs_s`` all repeats; ``error`` the kind of failure; ``elapsed_s`` the seconds of tuning at
    its result; ``timestamp`` seconds since 1970. ``checked``: its results were compared with the
    reference, and are right. ``record``: TVM's database record of a program that ran, as JSON.
    ``extra``: ``code_bytes`` and ``scratch_bytes`` in runs that look for small programs.
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
    compiled_only: bool = False  # it never ran
    checked: bool = False
    record: str | None = None

    @property
    def latency_s(self) -> float:
        """Mean of the repeats in seconds; infinite for a failure or none."""
        known = self.error is None and not self.compiled_only
        return float(np.mean(self.costs_s)) if known else float("inf")

    @property
    def size_bytes(self) -> float | None:
        """Bytes of code and scratch memory; None where they were not read."""
        return size_bytes(self.extra)


def read_trials(path: Path, log: Log = silent) -> list[Trial]:
    """Read a journal; report damaged lines, which count as not measured."""
    found, known = [], set()
    for number, line in enumerate(complete_lines(path), start=1):
        try:
            trial = read_trial(line)
            if trial.trial in known:
                raise ValueError(f"trial {trial.trial} once more")
        except ValueError as error:
            log(f"{path}, line {number}: {error}; it counts as not measured")
            continue
        known.add(trial.trial)
        found.append(trial)
    return found


def read_trial(line: bytes) -> Trial:
    """Parse a line of a journal; raise `ValueError` where it is damaged."""
    row = json_of(line)
    odd = row.keys() - _KINDS.keys() or _NEEDED - row.keys()
    odd = odd or {name for name, value in row.items() if not _fits(value, _KINDS[name])}
    if odd:
        raise ValueError(f"its {min(odd)} is missing, unknown or of the wrong kind")
    if row["error"] is None and not row.get("compiled_only") and not are_timings(row["costs_s"]):
        raise ValueError("its costs_s are no seconds above 0")
    return Trial(**row)


def _fits(value: Any, kind: Any) -> bool:
    """Check a value of JSON against the type of a field."""
    if get_origin(kind) is list:
        return type(value) is list and all(_fits(item, *get_args(kind)) for item in value)
    kinds = get_args(kind) if get_origin(kind) is UnionType else (get_origin(kind) or kind,)
    # type(), not isinstance: a truth value is an int, too
    return type(value) in (*kinds, int) if float in kinds else type(value) in kinds


_KINDS = get_type_hints(Trial)
_NEEDED = {
    one.name
    for one in dataclasses.fields(Trial)
    if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
}
