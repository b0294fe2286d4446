"""Read a record folder into featurised programs, for every command."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pruner.data.parse import LineParser
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot, TaskFile
from pruner.data.tasks import TaskRecords
from pruner.errors import DataError
from pruner.files import digest_of
from pruner.models.programs.cache import FeatureCache
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import (
    FilePrograms,
    FileRecords,
    ReadSpec,
    Tally,
    featurize_files,
    read_records,
)
from pruner.program.replay import definitions_of

log = logging.getLogger(__name__)

_TOGETHER = 1 << 14  # records of traces that are featurised together

TrackFiles = Callable[[Iterable[FilePrograms], int], Iterable[FilePrograms]]
"""Passes record files on and counts them, given how many there are: a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Programs with features, and counts of their reading."""

    store: ProgramTable
    platforms: tuple[str, ...]
    tally: Tally
    quarantined: Mapping[str, int]
    seconds: float
    num_cached: int

    def report(self) -> dict[str, Any]:
        """A summary of the data for a run's files."""
        return {
            "platforms": list(self.platforms),
            "num_records": self.tally.counts["records"],
            "num_measured": self.tally.counts["measured"],
            "quarantined": dict(self.quarantined),
            "num_not_featurised": self.tally.num_failed,
            "not_featurised": dict(self.tally.failures),
            "read_seconds": round(self.seconds, 2),
        }


def load_programs(
    root: RecordRoot,
    platforms: Sequence[str],
    spec: ReadSpec | None = None,
    *,
    report: Path | None = None,
    watch: TrackFiles | None = None,
) -> Dataset:
    """Read all records of the platforms and compute their features.

    `report`: file for the list of unreadable lines. Raises DataError without a usable program.
    """
    start = time.perf_counter()
    reader = RecordReader(root, spec or ReadSpec())
    with Quarantine(report) as quarantine:
        store = reader.table(platforms, quarantine, watch)
    return Dataset(
        store=store,
        platforms=tuple(platforms),
        tally=reader.tally,
        quarantined=dict(quarantine.counts),
        seconds=time.perf_counter() - start,
        num_cached=reader.num_cached,
    )


class RecordReader:
    """Reads record files one after another, from the cache where possible (`num_cached`)."""

    def __init__(self, root: RecordRoot, spec: ReadSpec) -> None:
        self.root, self.spec, self.tally = root, spec, Tally()
        self.num_cached = 0
        self._definitions, self._parser = definitions_of(root.path), LineParser()
        self._cache = None if spec.cache is None else FeatureCache(Path(spec.cache), root, spec)
        # loaders of the tasks that were left in the cache
        self._entries: list[Callable[[], ProgramTable]] = []

    def table(
        self, platforms: Sequence[str], quarantine: Quarantine, watch: TrackFiles | None = None
    ) -> ProgramTable:
        """All tasks of the given platforms; errors as in :meth:`tasks`."""
        entries = self._entries = []
        found = self.tasks(platforms, quarantine, watch)
        if not self.spec.stream:
            return ProgramTable.build(found)
        return ProgramTable.build(found, load=lambda number: entries[number]())

    def tasks(
        self, platforms: Sequence[str], quarantine: Quarantine, watch: TrackFiles | None = None
    ) -> list[TaskPrograms]:
        """All tasks with a featurised program; raises DataError without a usable record."""
        files = self.root.task_files(list(platforms))
        found: list[TaskPrograms] = []
        measured = 0
        each: Iterable[FilePrograms] = self._each(files)
        each = each if watch is None else watch(each, len(files))
        for file, programs in zip(files, each, strict=True):
            programs.report_quarantined(file, quarantine)
            self.tally.add(programs.tally)
            measured += programs.tally.counts["measured"]
            found += programs.tasks
        if not measured:
            raise self.root.nothing_usable(files, quarantine)
        if not found:
            counts = ", ".join(f"{num} x {why}" for why, num in self.tally.failures.most_common())
            tasks = "; ".join(
                sorted({text.partition("): ")[2] for text in self.tally.left_out})[:3]
            )
            raise DataError(f"no program of {len(files)} tasks has features ({counts}): {tasks}")
        return found

    def _each(self, files: Sequence[TaskFile]) -> Iterator[FilePrograms]:
        waiting: list[tuple[TaskFile, str, FilePrograms | FileRecords]] = []
        records = 0  # that wait for features
        for file in files:
            try:
                content, found = self._opened(file)
            except Exception:
                yield from self._featurized(waiting)  # the next start finds them in the cache
                raise
            waiting.append((file, content, found))
            records += sum(
                len(one) if isinstance(one, TaskRecords) else len(one.latency_s)
                for one in found.tasks
            )
            # Traces of many files share their work; records of Ansor share none.
            if self._definitions.spaces is None or not 0 < records < _TOGETHER:
                yield from self._featurized(waiting)
                waiting, records = [], 0
        yield from self._featurized(waiting)

    def _featurized(
        self, waiting: Sequence[tuple[TaskFile, str, FilePrograms | FileRecords]]
    ) -> Iterator[FilePrograms]:
        fresh = [found for _, _, found in waiting if isinstance(found, FileRecords)]
        made = iter(featurize_files(fresh, self.spec, self._definitions))
        for file, content, known in waiting:
            found = known if isinstance(known, FilePrograms) else next(made)
            if self._cache is not None and found is not known:
                self._cache.save(file, content, found)
            yield self._left_there(file, content, found) if self.spec.stream else found

    def _opened(self, file: TaskFile) -> tuple[str, FilePrograms | FileRecords]:
        """Return the digest of a file, and its entry or else its records."""
        content = ""  # without a cache, and of a file that cannot be read: the reader sets it aside
        if self._cache is not None:
            # Taken before the file is read: a line appended meanwhile changes the next key, so an
            # entry with it is never used under a wrong key.
            with suppress(OSError):
                content = digest_of([file.path])
        found = self._cache.load(file, content) if self._cache and content else None
        if found is None:
            return content, read_records(file, self.spec.duplicates, self._parser)
        self.num_cached += 1
        # A fresh reading warns as it goes; the cache repeats its warnings.
        for message in found.tally.left_out:
            log.warning("%s", message)
        return content, found

    def _left_there(self, file: TaskFile, content: str, found: FilePrograms) -> FilePrograms:
        """The programs with a single example's features; others stay cached."""
        assert self._cache is not None
        numbers = range(len(found.tasks))
        self._entries += [partial(self._cache.task, file, content, number) for number in numbers]
        return replace(found, tasks=[example(part) for part in found.tasks])


def example(part: TaskPrograms) -> TaskPrograms:
    """A task with the features of a single program that has dataflow, otherwise complete."""
    place = part.features.dataflow.any(axis=(1, 2)).argmax()
    return replace(part, features=part.features.take(np.array([place])))
