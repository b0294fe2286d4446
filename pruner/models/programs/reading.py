"""Read record files into featurised programs, counting every omission."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pruner import features
from pruner.data.parse import LineParser
from pruner.data.quarantine import EXCERPT_BYTES, Quarantine, Reason, of_all
from pruner.data.root import TaskFile
from pruner.data.tasks import Duplicates, TaskRecords
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.features.batch import Extra
from pruner.features.dataflow import DataflowKind
from pruner.models.analyzer.columns import draft_columns
from pruner.models.programs.program_table import TaskPrograms
from pruner.program.replay import Definitions, mostly_traces

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """Options of reading records.

    ``dataflow``: ``paper`` (with the epilogue) or ``official`` rows; ``duplicates="drop"`` keeps
    one record of every program; ``draft``: also the analyzer's terms; ``failures``: also programs
    that did not build or run, with an infinite latency; ``cache``: folder of cached features;
    ``stream``: leave features in the cache, and load them task by task where they are read.
    """

    dataflow: DataflowKind = "paper"
    duplicates: Duplicates = "drop"
    draft: bool = False
    failures: bool = False
    cache: Path | str | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        if self.stream and self.cache is None:
            raise PrunerError("store=stream leaves features in a cache: give a folder, data.cache=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of the records by result; every dropped record is counted.

    `counts` has the "records" read and those "measured" without error; `failures` the measured
    programs that could not be featurised, by reason; `left_out` a message for each task that has no
    features at all.
    """

    failures: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)

    @property
    def num_failed(self) -> int:
        """Measured programs without features."""
        return self.failures.total()

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.failures.update(other.failures)
        self.counts.update(other.counts)
        self.left_out.extend(other.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePrograms:
    """The result of reading a record file.

    `tasks` have at least one program with features; `quarantined`: (line, reason, detail, beginning
    of the line) of each line that is no record; `refused`: (line, reason) of each program without
    features, or of the first line of a task without features.
    """

    tasks: Sequence[TaskPrograms]
    tally: Tally
    quarantined: Sequence[tuple[int, str, str, str]]
    refused: Sequence[tuple[int, str]] = ()

    def report_quarantined(self, file: TaskFile, quarantine: Quarantine) -> None:
        """Report the lines set aside and the programs refused, as a fresh reading does."""
        for line, reason, detail, excerpt in self.quarantined:
            quarantine.add(
                file=str(file.path),
                line=line,
                reason=Reason(reason),
                detail=detail,
                text=excerpt.encode("latin-1"),
            )
        for line, why in self.refused:
            quarantine.not_replayed(file=str(file.path), line=line, why=why)


class _QuarantinedLines(Quarantine):
    """A quarantine that stores its entries instead of writing a report."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, str, str]] = []

    def add(
        self, *, file: str, line: int, reason: Reason, detail: str = "", text: bytes = b""
    ) -> None:
        super().add(file=file, line=line, reason=reason, detail=detail, text=text)
        excerpt = text[:EXCERPT_BYTES].decode("latin-1")  # latin-1 keeps any bytes
        self.lines.append((line, reason.value, detail, excerpt))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecords:
    """The records of a file by task; `quarantined` as in :class:`FilePrograms`."""

    file: TaskFile
    tasks: Sequence[TaskRecords]
    quarantined: Sequence[tuple[int, str, str, str]]


def read_records(
    file: TaskFile, duplicates: Duplicates, parser: LineParser | None = None
) -> FileRecords:
    """Read a record file, and keep the lines that were set aside."""
    quarantined = _QuarantinedLines()
    tasks = file.read(quarantined, duplicates, parser)
    return FileRecords(file=file, tasks=tasks, quarantined=quarantined.lines)


def featurize_files(
    files: Sequence[FileRecords], spec: ReadSpec, tasks: Definitions | None = None
) -> list[FilePrograms]:
    """Featurise the records of files by the definitions `tasks`; traces of all files together."""
    known = _features_of_traces(files, spec, tasks)
    out = []
    for one in files:
        tally, refused = Tally(), list[tuple[int, str]]()
        parts = [
            featurize_task(
                records,
                spec.dataflow,
                tally,
                tasks,
                extra=draft_columns(one.file.platform) if spec.draft else None,
                failures=spec.failures,
                refused=refused,
                found=known.get(id(records)),
            )
            for records in one.tasks
        ]
        found = [part for part in parts if part is not None]
        out.append(
            FilePrograms(tasks=found, tally=tally, quarantined=one.quarantined, refused=refused)
        )
    return out


def _taken(records: TaskRecords, *, failures: bool) -> TaskRecords:
    return records if failures else records.select(records.valid)


def _features_of_traces(
    files: Sequence[FileRecords], spec: ReadSpec, definitions: Definitions | None
) -> dict[int, features.ProgramFeatures]:
    """Return features of the tasks of traces, by the id of their records."""
    if definitions is None or definitions.spaces is None:
        return {}
    numbers, together, extras = list[int](), list[list[Any]](), list[Extra]()
    for one in files:
        for records in one.tasks:
            steps = _taken(records, failures=spec.failures).steps
            if records.valid.any() and mostly_traces(steps):
                numbers.append(id(records))
                together.append(steps)
                # Only the analyzer's columns depend on the platform.
                extras += [draft_columns(one.file.platform)] if spec.draft else []
    how = features.FeatureSpec(dataflow=spec.dataflow)
    found = features.featurize_traces(definitions.spaces, together, how, extras)
    return dict(zip(numbers, found, strict=True))


def featurize_task(
    records: TaskRecords,
    dataflow: DataflowKind,
    tally: Tally,
    tasks: Definitions | None = None,
    *,
    extra: Extra | None = None,
    failures: bool = False,
    refused: list[tuple[int, str]] | None = None,
    found: features.ProgramFeatures | None = None,
) -> TaskPrograms | None:
    """Featurise the measured programs of a task; None without any result.

    `tasks` has the operators of TenSet's own tasks, `extra` makes further columns of the programs.
    With `failures`, programs that did not build or run are included, with an infinite latency.
    `refused` receives (line, reason) of each skipped program; one entry for a skipped task.
    `found`: the features, where they are computed already.
    """
    refused = [] if refused is None else refused
    num_measured = int(records.valid.sum())
    tally.counts["records"] += len(records)
    tally.counts["measured"] += num_measured
    if not num_measured:
        return None
    taken = _taken(records, failures=failures)
    try:
        batch = found or features.featurize_records(
            records.workload_key,
            records.fused,
            taken.steps,
            features.FeatureSpec(dataflow=dataflow, extra=extra),
            tasks=tasks,
        )
    except UnsupportedProgram as error:
        # The operator is unknown, so no program of the task can be featurised.
        tally.failures[error.reason] += num_measured
        refused.append((int(taken.line[0]), of_all(error.reason, num_measured)))
        tally.left_out.append(f"{records.file} left out ({num_measured} programs): {error}")
        log.warning("%s", tally.left_out[-1])
        return None
    without = {row: why for row, why in sorted(batch.failures.items()) if taken.valid[row]}
    tally.failures.update(without.values())
    refused += [(int(taken.line[row]), why) for row, why in without.items()]
    columns = (taken.latency_s, taken.line, taken.digest, taken.timed_s)
    part = TaskPrograms.of(records.key, batch, *columns)
    # Where every program failed there is no best latency for labels.
    return part if np.isfinite(part.latency_s).any() else None
