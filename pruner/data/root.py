"""The layout of a record folder.

``<root>/measure_records/<platform>/<task>.json[.gz|.xz|.zst]``. This is TenSet's layout; its own
file names, ``([<hash>,1,64,...],cuda).json``, are task names like any other.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pruner.data.parse import LineParser
from pruner.data.quarantine import Quarantine
from pruner.data.tasks import COMPRESSION_SUFFIXES, Duplicates, TaskRecords, read_tasks, task_name
from pruner.errors import DataError

log = logging.getLogger(__name__)

FOLDER = "measure_records"
RECORD_SUFFIXES = (".json", *(".json" + suffix for suffix in COMPRESSION_SUFFIXES))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskFile:
    """A record file; `task` is its name without suffixes."""

    platform: str
    task: str
    path: Path

    def read(
        self,
        quarantine: Quarantine,
        duplicates: Duplicates = "drop",
        parser: LineParser | None = None,
    ) -> list[TaskRecords]:
        """Read the file (`read_tasks`)."""
        about = {"platform": self.platform, "task": self.task}
        return read_tasks(self.path, quarantine, **about, duplicates=duplicates, parser=parser)


class RecordRoot:
    """A folder of record files (``data.root``); raises DataError without any platform."""

    def __init__(self, data_root: Path | str) -> None:
        self.path = Path(data_root)
        folder = self.path / FOLDER
        if not self.path.is_dir():
            raise DataError(f"data.root={self.path}: no such folder; {_fix(self.path)}")
        if not folder.is_dir():
            inside = self.path.name == FOLDER or self.path.parent.name == FOLDER
            hint = "name its parent instead" if inside else _fix(self.path)
            raise DataError(f"data.root={self.path}: no folder {FOLDER} in it; {hint}")
        self._folder = folder
        if not self.platforms:
            raise DataError(f"{folder}: no platform folder in it; {_fix(self.path)}")

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms with at least one record file, sorted; without imports under way (``.x``)."""
        found = (entry for entry in self._folder.glob("[!.]*") if entry.is_dir())
        return tuple(sorted(entry.name for entry in found if _record_files(entry)))

    def task_files(self, platforms: str | Sequence[str] | None = None) -> tuple[TaskFile, ...]:
        """Return the files of platforms (None: all), sorted; raises `DataError` without any."""
        names = [platforms] if isinstance(platforms, str) else platforms
        return tuple(file for name in names or self.platforms for file in self._platform(name))

    def _platform(self, platform: str) -> list[TaskFile]:
        folder = self._folder / platform
        paths = _record_files(folder) if folder.is_dir() else []
        if not paths:
            raise DataError(
                f"{self.path}: no records for platform {platform!r}; "
                f"there are records for: {', '.join(self.platforms)}"
            )
        files: dict[str, TaskFile] = {}
        for path in paths:
            task = task_name(path)
            if task in files:
                log.warning("%s ignored: %s holds the same task", path, files[task].path.name)
                continue
            files[task] = TaskFile(platform=platform, task=task, path=path)
        return sorted(files.values())

    def read(
        self,
        quarantine: Quarantine,
        platforms: str | Sequence[str] | None = None,
        *,
        duplicates: Duplicates = "drop",
        measured: bool = True,
    ) -> Iterator[TaskRecords]:
        """Read task after task (`read_tasks`), a file in memory at once.

        Raises DataError where a platform has no file or, at the end, no program was measured; with
        `measured=False` only where no record is readable.
        """
        files = self.task_files(platforms)
        parser = LineParser()
        usable = 0
        for file in files:
            for records in file.read(quarantine, duplicates, parser):
                usable += int(records.valid.sum()) if measured else len(records)
                yield records
        if not usable:
            raise self.nothing_usable(files, quarantine)

    def nothing_usable(self, files: Sequence[TaskFile], quarantine: Quarantine) -> DataError:
        """Return the error for files without any measured program."""
        where = f"{self._folder}/{{{','.join(sorted({file.platform for file in files}))}}}"
        return DataError(
            f"{where}: no usable record in {len(files)} files ({summary(quarantine)}); "
            f"{_fix(self.path)}"
        )


def summary(quarantine: Quarantine) -> str:
    """Return the counts of a quarantine in one line, for messages."""
    counts = quarantine.counts.most_common(4)
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts)
    report = f", see {quarantine.report}" if quarantine.report else ""
    return f"set aside: {reasons}{report}" if counts else "every measurement failed or files empty"


def _record_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.endswith(RECORD_SUFFIXES) and not path.name.startswith(".") and path.is_file()
    )


def _fix(root: Path) -> str:
    return (
        f"records belong in {root}/{FOLDER}/<platform>/<task>.json; "
        f"raw logs get there by: pruner import_logs logs=DIR out={root} platform=NAME"
    )
