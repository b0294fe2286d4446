"""From a record folder to featurised programs in memory: the one way in for every command."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from pruner.data.parse import LineParser
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot, TaskFile
from pruner.data.tasks import Duplicates
from pruner.features.dataflow import DataflowKind
from pruner.models.programs.cache import FeatureCache
from pruner.models.programs.forms import Features, Form, Part, Store
from pruner.models.programs.reading import FilePrograms, Tally, read_programs
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.program.replay import definitions_of

log = logging.getLogger(__name__)

TrackFiles = Callable[[Iterable[FilePrograms[Any]], int], Iterable[FilePrograms[Any]]]
"""Passes record files on and counts them, given how many there are: a progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Generic[Store]):
    """Programs that have features, and how they came about.

    `platforms` are record folders, `quarantined` the lines set aside by reason; `num_cached` of
    `num_files` record files were found featurised in the cache.
    """

    store: Store
    platforms: tuple[str, ...]
    tally: Tally
    quarantined: Mapping[str, int]
    seconds: float
    num_files: int
    num_cached: int

    def report(self) -> dict[str, Any]:
        """What a run writes down about its data."""
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
    *,
    dataflow: DataflowKind = "paper",
    duplicates: Duplicates = "drop",
    draft: bool = False,
    failures: bool = False,
    cache: Path | None = None,
    report: Path | None = None,
    watch: TrackFiles | None = None,
) -> Dataset[ProgramStore]:
    """Read all records of the platforms and compute their features.

    Args:
        root: the record folder.
        platforms: the sub-folders to read.
        dataflow: ``paper`` (with the epilogue) or ``official`` rows.
        duplicates: ``drop`` keeps one record of every program.
        draft: also compute the analyzer's terms of every program.
        failures: also keep programs that did not build or run, with an infinite latency.
        cache: folder of cached features; None: no cache.
        report: file for the list of unreadable lines; None: they are only counted.
        watch: shows progress.

    Raises:
        DataError: a platform has no records, no record is usable, or no program has features.
    """
    return load_as(
        Features(),
        root,
        platforms,
        dataflow=dataflow,
        duplicates=duplicates,
        draft=draft,
        failures=failures,
        cache=cache,
        report=report,
        watch=watch,
    )


def load_as(
    form: Form[Part, Store],
    root: RecordRoot,
    platforms: Sequence[str],
    *,
    dataflow: DataflowKind = "paper",
    duplicates: Duplicates = "drop",
    draft: bool = False,
    failures: bool = False,
    cache: Path | None = None,
    report: Path | None = None,
    watch: TrackFiles | None = None,
) -> Dataset[Store]:
    """Read records as `load_programs` does, into another form such as ``Vectors()``."""
    start = time.perf_counter()
    reader = Reader(
        form,
        root,
        dataflow=dataflow,
        duplicates=duplicates,
        draft=draft,
        failures=failures,
        cache=cache,
    )
    with Quarantine(report) as quarantine:
        found = reader.tasks(platforms, quarantine, watch)
    return Dataset(
        store=form.store(found, reader.definitions, dataflow),
        platforms=tuple(platforms),
        tally=reader.tally,
        quarantined=dict(quarantine.counts),
        seconds=time.perf_counter() - start,
        num_files=reader.num_files,
        num_cached=reader.num_cached,
    )


class Reader(Generic[Part]):
    """Programs of record files one after another, out of the cache where it has them.

    `tally` counts what happened to the records, `num_cached` of `num_files` came from the cache.
    `definitions`: what lies beside the records and says what they are of.
    """

    def __init__(
        self,
        form: Form[Part, Any],
        root: RecordRoot,
        *,
        dataflow: DataflowKind = "paper",
        duplicates: Duplicates = "drop",
        draft: bool = False,
        failures: bool = False,
        cache: Path | None = None,
    ) -> None:
        self.root, self.tally = root, Tally()
        self.num_files = self.num_cached = 0
        self._dataflow, self._duplicates = dataflow, duplicates
        self._draft, self._failures = draft, failures
        self.definitions, self._parser = definitions_of(root.path), LineParser()
        self._form = form
        self._stored: FeatureCache[Part] | None = None
        if cache is not None:
            self._stored = FeatureCache(
                cache,
                root,
                form,
                dataflow=dataflow,
                duplicates=duplicates,
                draft=draft,
                failures=failures,
            )

    def tasks(
        self, platforms: Sequence[str], quarantine: Quarantine, watch: TrackFiles | None = None
    ) -> list[Part]:
        """All tasks of the given platforms that have a program with features.

        Raises DataError where a platform has no records, or no record is usable.
        """
        files = self.root.task_files(list(platforms))
        found: list[Part] = []
        measured = 0
        each = _watched(self._each(files), len(files), watch)
        for file, programs in zip(files, each, strict=True):
            programs.tell(file, quarantine)
            self.tally.add(programs.tally)
            measured += programs.tally.counts["measured"]
            found += programs.tasks
        self.num_files += len(files)
        if not measured:
            raise self.root.nothing_usable(files, quarantine)
        return found

    def _each(self, files: Sequence[TaskFile]) -> Iterator[FilePrograms[Part]]:
        for file in files:
            if self._stored is None:
                yield self._read(file)
                continue
            key = self._stored.key(file)
            found = self._stored.load(file, key)
            if found is None:
                found = self._read(file)
                self._stored.save(file, key, found)
            else:
                self.num_cached += 1
                for message in found.tally.left_out:
                    log.warning("%s", message)
            yield found

    def _read(self, file: TaskFile) -> FilePrograms[Part]:
        return read_programs(
            file,
            self._form,
            dataflow=self._dataflow,
            duplicates=self._duplicates,
            tasks=self.definitions,
            parser=self._parser,
            draft=self._draft,
            failures=self._failures,
        )


class ProgramReader(Reader[TaskPrograms]):
    """The same for programs with their features."""

    def __init__(
        self,
        root: RecordRoot,
        *,
        dataflow: DataflowKind = "paper",
        duplicates: Duplicates = "drop",
        draft: bool = False,
        cache: Path | None = None,
    ) -> None:
        super().__init__(
            Features(), root, dataflow=dataflow, duplicates=duplicates, draft=draft, cache=cache
        )


def _watched(
    items: Iterable[FilePrograms[Part]], num: int, watch: TrackFiles | None
) -> Iterable[FilePrograms[Part]]:
    return items if watch is None else watch(items, num)
