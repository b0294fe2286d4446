"""Count and report lines that are no records, report programs without features; never raise."""

import json
import logging
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Self

log = logging.getLogger(__name__)

EXCERPT_BYTES = 160


class Reason(StrEnum):
    """Why a line (or a file's rest) was set aside, by stable names."""

    MALFORMED_JSON = "malformed_json"
    NOT_UTF8 = "not_utf8"
    NOT_A_RECORD = "not_a_record"
    MISSING_FIELD = "missing_field"
    BAD_FIELD = "bad_field"
    UNKNOWN_STEP = "unknown_step"
    BAD_STEP = "bad_step"
    ABSURD_EXTENT = "absurd_extent"
    BAD_COST = "bad_cost"
    UNKNOWN_FUSION = "unknown_fusion"
    OTHER_ARGUMENTS = "other_arguments"  # the steps contradict the workload key
    AUTOTVM = "autotvm"  # a record of AutoTVM, not of Ansor
    DUPLICATE = "duplicate"
    DOUBLED_KEY = "doubled_key"
    BAD_LINE = "bad_line"
    LINE_TOO_LONG = "line_too_long"
    FILE_TOO_LARGE = "file_too_large"
    TRUNCATED_FILE = "truncated_file"
    CORRUPT_STREAM = "corrupt_stream"
    UNREADABLE_FILE = "unreadable_file"
    EMPTY_FILE = "empty_file"
    ARCHIVE = "archive"  # a tar archive, whose first record stands behind a header
    NOT_REPLAYED = "not_replayed"  # a record, but its program has no features


class MalformedError(Exception):
    """A line breaks the validity rule; readers quarantine it."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line set aside; `line` is 0-based, `excerpt` its beginning."""

    file: str
    line: int
    reason: Reason
    detail: str
    excerpt: str


class Quarantine:
    """Counts lines set aside; lists them in `report`, unless there are none."""

    def __init__(self, report: Path | str | None = None) -> None:
        self.report = None if report is None else Path(report)
        self.counts: Counter[str] = Counter()
        self._listed = 0  # entries, including programs
        self._handle: IO[bytes] | None = None

    @property
    def total(self) -> int:
        """Number of entries so far."""
        return self.counts.total()

    def add(
        self, *, file: str, line: int, reason: Reason, detail: str = "", text: bytes = b""
    ) -> None:
        """Set a line aside; the report keeps the beginning of `text`."""
        self.counts[reason.value] += 1
        log.debug("%s:%d set aside (%s) %s", file, line, reason.value, detail)
        excerpt = text[:EXCERPT_BYTES].decode("utf-8", errors="backslashreplace")
        self._list(Entry(file=file, line=line, reason=reason, detail=detail, excerpt=excerpt))

    def not_replayed(self, *, file: str, line: int, why: str) -> None:
        """List a record whose program cannot be replayed; not counted here."""
        log.debug("%s:%d not replayed: %s", file, line, why)
        self._list(Entry(file=file, line=line, reason=Reason.NOT_REPLAYED, detail=why, excerpt=""))

    def _list(self, entry: Entry) -> None:
        self._listed += 1
        if self.report is None:
            return
        if self._handle is None:
            self.report.parent.mkdir(parents=True, exist_ok=True)
            self._handle = self.report.open("wb")
        self._handle.write(json.dumps(asdict(entry)).encode() + b"\n")

    def close(self) -> None:
        """Finish the report file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if kind is None and not self._listed and self.report is not None:
            self.report.unlink(missing_ok=True)


def of_all(reason: str, num: int) -> str:
    """Return the reason common to all programs of a task.

    >>> of_all("unknown-operator", 3)
    'unknown-operator: all 3 programs of the task'
    """
    return f"{reason}: all {num} programs of the task"


def read_report(path: Path | str) -> list[Entry]:
    """Read the entries of a report file, in order of writing."""
    rows = map(json.loads, Path(path).read_bytes().splitlines())
    return [Entry(**{**row, "reason": Reason(row["reason"])}) for row in rows]
