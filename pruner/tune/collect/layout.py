"""Where a collection keeps its files, and how a journal becomes a record file.

``measure_records/<platform>/<task>.json.gz`` holds the records exactly as Ansor writes them.
Ansor refuses a record with an unknown key, so which program came from where stands in a side file:
``origin/<platform>/<task>.json``, a JSON list with "random" or "evolved" for each line in turn.
While a task is measured, both live together in ``journal/<platform>/<task>.jsonl``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.errors import DataError
from pruner.files import own_file, unsealed, write_checksums, write_whole

ORIGINS = ("random", "evolved")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPaths:
    """The files of one task on one platform below the output folder ``out``."""

    out: Path
    platform: str
    task: str

    @property
    def records(self) -> Path:
        """Record lines, gzipped."""
        return self.out / "measure_records" / self.platform / f"{self.task}.json.gz"

    @property
    def origin(self) -> Path:
        """Origin of each record line."""
        return self.out / "origin" / self.platform / f"{self.task}.json"

    @property
    def journal(self) -> Path:
        """Entries of a measurement that is not finished."""
        return self.out / "journal" / self.platform / f"{self.task}.jsonl"

    @property
    def log(self) -> Path:
        """What the child process wrote on stderr."""
        return self.journal.with_suffix(".log")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the complete entries; cut off a last line that a kill left incomplete.

    Raises:
        DataError: a line is damaged; those behind it may mean something only with it.
    """
    if not path.exists():
        return []
    data = own_file(path).read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(complete))
    entries = []
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            entries.append(json.loads(unsealed(line)))
        except ValueError as error:
            raise damaged(path, f"line {number}: {error}") from error
    return entries


def damaged(path: Path, what: str) -> DataError:
    """The error of a journal that is not as it was written."""
    told = " ".join(what.split())[:120]
    return DataError(f"{path}: damaged ({told}); delete it, and its task is measured again")


def count_valid(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Count the measured records by origin."""
    counts = dict.fromkeys(ORIGINS, 0)
    for entry in entries:
        counts[entry["origin"]] += int(entry["record"]["r"][1] == 0)
    return counts


def open_journal(paths: TaskPaths) -> list[dict[str, Any]]:
    """Return what is already measured, after putting finished records back into the journal.

    Raises:
        DataError: what is there is damaged.
    """
    if not paths.journal.exists() and paths.records.exists():
        entries = _finished(paths)
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        _replace(paths.journal, text.encode())
    return read_journal(paths.journal)


def _finished(paths: TaskPaths) -> list[dict[str, Any]]:
    """The entries of a finished task. Raises `DataError` where its files are damaged."""
    try:
        lines = gzip.decompress(paths.records.read_bytes()).splitlines()
        origins = json.loads(paths.origin.read_text(encoding="utf-8"))
        return [
            {"origin": origin, "record": json.loads(line)}
            for origin, line in zip(origins, lines, strict=True)
        ]
    except (EOFError, ValueError, TypeError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(paths.records, f"it and its origin: {error}") from error


def finish_journal(paths: TaskPaths) -> list[dict[str, Any]]:
    """Turn the journal into the record file and its origin file; return the entries."""
    entries = read_journal(paths.journal)
    if entries:
        text = "".join(json.dumps(entry["record"]) + "\n" for entry in entries)
        # no time stamp: the same records give the same bytes
        _replace(paths.records, gzip.compress(text.encode(), compresslevel=9, mtime=0))
        _replace(paths.origin, (json.dumps([entry["origin"] for entry in entries]) + "\n").encode())
    paths.journal.unlink(missing_ok=True)
    return entries


def write_sums(out: Path) -> Path:
    """Write SHA256SUMS over what was measured: records, origins, what was measured again."""
    folders = (out / "measure_records", out / "origin")
    paths = [path for folder in folders for path in folder.rglob("*.json*")]
    return write_checksums(out, [*paths, out / "remeasured.json"])


def _replace(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as partial:
        partial.write_bytes(data)
