"""Import raw tuning logs of any name and mix into the measure_records layout."""

import gzip
import json
import logging
import re
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal

from pruner.data.parse import LineParser, ParsedLine, parse_lines
from pruner.data.quarantine import Quarantine, Reason
from pruner.data.root import FOLDER, summary
from pruner.data.stream import read_lines
from pruner.data.workload import fused_from_name, parse_workload
from pruner.errors import DataError, UnsupportedProgram
from pruner.files import files_below, held, write_atomic
from pruner.progress import silent

log = logging.getLogger(__name__)

Compression = Literal["none", "gz"]
Device = tuple[str, tuple[int, ...]]  # target as logged, hardware parameters
OnFile = Callable[[int, int], None]  # files done, files in all
# (workload key, steps, fused operators by the log's name) to the workload key and the operators
ReadTask = Callable[[str, list[list[Any]], tuple[str, ...]], tuple[str, tuple[str, ...]]]
_REFUSED = {"unknown-fusion": Reason.UNKNOWN_FUSION, "other-arguments": Reason.OTHER_ARGUMENTS}
# Beginnings of files that hold no lines of logs, and the way out.
_PACKED = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"BZh": "packed by bzip2; unpack it, or pack it by gzip, xz or zstd",
    b"7z\xbc\xaf": "a 7-Zip archive; unpack it",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself (git lfs pull)",
    b"\x80": "a pickle of Python, which may run code; write its records as lines of JSON",
    b"<": "a page of the web; fetch the file itself",
}
MAX_OPEN_FILES = 64
COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """Counts of an import: `records`, `failed` measurements, records by device."""

    records: int
    failed: int
    tasks: int
    files: int
    quarantined: dict[str, int]
    devices: Counter[Device]
    out: Path


def import_logs(
    logs: Path,
    out: Path,
    platform: str,
    quarantine: Quarantine,
    *,
    read_task: ReadTask,
    compression: Compression = "none",
    progress: OnFile = silent,
) -> ImportResult:
    """Write every record under `logs` to ``out/measure_records/<platform>/<task>.json``.

    One file per workload, fused operators, target and hardware parameters; lines are copied as they
    are and streamed. Of a program logged twice the first valid record is kept.
    `read_task` (`pruner.program.te.recorded_task.TaskReader`) finds operator and fused operators,
    which names of logs lack; a record for which it raises `UnsupportedProgram` is set aside.

    Raises DataError for no log file, no record, and as `new_platform`.
    """
    files = _log_files(logs, out, quarantine.report)
    with new_platform(out, platform, quarantine, compression) as writer:
        _copy(files, writer, quarantine, read_task, progress)
        if not writer.records:
            raise DataError(
                f"logs={logs}: no usable record in {len(files)} files ({summary(quarantine)}); "
                + _expected(files, quarantine)
            )
    return writer.result(len(files))


def _expected(files: list[Path], quarantine: Quarantine) -> str:
    num = quarantine.counts[Reason.AUTOTVM.value]
    if num:
        return (
            f"{num} lines are AutoTVM's, which hold knobs of a template and no schedule: their "
            "programs cannot be read here, only logs of Ansor and databases of MetaSchedule"
        )
    if quarantine.counts[Reason.UNKNOWN_STEP.value]:
        return "its programs have steps that Ansor does not have; the report names them"
    if quarantine.counts[Reason.BAD_COST.value]:
        return "its programs were not measured: a record has the seconds of its runs"
    if quarantine.counts[Reason.ARCHIVE.value]:
        return "tar archives are not read; unpack them"
    if quarantine.counts[Reason.OTHER_ARGUMENTS.value]:
        return "another operator has this name here, or another order of arguments"
    for path in files:
        _, first, _ = next(read_lines(path, Quarantine()), (0, b"", True))
        for begin, what in _PACKED.items():
            if first.startswith(begin):
                return f"{path.name} is {what}"
        if first.lstrip().startswith(b"["):
            return f"{path.name} is a JSON array; write one record a line: jq -c '.[]' {path.name}"
    return (
        'expected Ansor logs: one JSON object {"i": ..., "r": ..., "v": "v0.6"} a line, or '
        "database_workload.json and database_tuning_record.json of MetaSchedule"
    )


@contextmanager
def new_platform(
    out: Path, platform: str, quarantine: Quarantine, compression: Compression
) -> Iterator["RecordWriter"]:
    """Yield a writer of a platform's records.

    Their folder appears when the body is done. Raises `DataError` for a bad or known name,
    PrunerError where another process writes to `out`.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", platform):
        raise DataError(f"platform={platform!r}: use letters, digits, '.', '_' and '-' only")
    final = out / FOLDER / platform
    if final.exists():
        raise DataError(f"{final} exists and is left alone; choose another out or platform")
    partial = final.with_name(f".{platform}.partial")
    out.mkdir(parents=True, exist_ok=True)
    with held(out):
        shutil.rmtree(partial, ignore_errors=True)  # of an interrupted import
        partial.mkdir(parents=True)
        writer = RecordWriter(partial, final, quarantine)
        try:
            yield writer
            writer.finish(compression)
            partial.rename(final)
        finally:
            writer.close()
            shutil.rmtree(partial, ignore_errors=True)


def _log_files(logs: Path, out: Path, report: Path | None) -> list[Path]:
    """List the files of `logs`, without the records and reports of imports into `out`."""
    if not logs.exists():
        raise DataError(f"logs={logs}: no such file or folder")
    written = (out / FOLDER).resolve()
    reports = {path.resolve() for path in (*out.glob("quarantine-*.jsonl"), report) if path}
    files = [
        path
        for path in ([logs] if logs.is_file() else files_below(logs))
        if not path.name.startswith(".")
        and not path.resolve().is_relative_to(written)
        and path.resolve() not in reports
    ]
    if not files:
        raise DataError(f"logs={logs}: no file in it; name the folder that holds the tuning logs")
    return files


def _copy(
    files: list[Path],
    writer: "RecordWriter",
    quarantine: Quarantine,
    read_task: ReadTask,
    progress: OnFile,
) -> None:
    parser, refused = LineParser(), set[str]()
    for done, path in enumerate(files):
        progress(done, len(files))
        for number, line, parsed in parse_lines(path, quarantine, parser):
            key = parsed.header.workload_key
            # the name of a log may be about another operator
            about_it = path.name.removeprefix("ansor_").startswith(parse_workload(key).short_op)
            named = fused_from_name(path.name) if about_it else ()
            try:
                known, fused = read_task(key, parsed.steps, named)
            except UnsupportedProgram as error:
                reason = _REFUSED.get(error.reason, Reason.BAD_FIELD)
                detail = error.detail
                if key not in refused:
                    refused.add(key)
                    log.warning("left out: %s", detail)
                quarantine.add(file=str(path), line=number, reason=reason, detail=detail, text=line)
                continue
            if known != key:  # the record gets the other workload key
                raw = json.loads(line)
                raw["i"][0][0] = known
                header = replace(parsed.header, workload_key=known)
                parsed, line = parsed._replace(header=header), json.dumps(raw).encode()
            writer.add(parsed, line, (str(path), number), fused)
    progress(len(files), len(files))


_Task = tuple[str, tuple[str, ...], Device]  # workload key, fused operators
_Place = tuple[str, int]  # log file, 0-based line


class RecordWriter:
    """Task files in one folder, opened as needed, and the programs already in them."""

    def __init__(self, folder: Path, final: Path, quarantine: Quarantine) -> None:
        self.paths: dict[_Task, Path] = {}
        self.records = 0
        self.failed = 0
        self.devices: Counter[Device] = Counter()
        self._folder, self._final, self._quarantine = folder, final, quarantine
        self._names: set[str] = set()
        # Program digest -> None where it ran, the place of the failed record otherwise.
        self._programs: dict[_Task, dict[int, _Place | None]] = {}
        self._superseded: dict[_Task, set[int]] = {}  # failed first, then valid
        self._open: OrderedDict[Path, IO[bytes]] = OrderedDict()

    def add(
        self,
        parsed: ParsedLine,
        line: bytes,
        place: _Place,
        fused: tuple[str, ...] = (),
        name: str | None = None,
    ) -> None:
        """Append a record to its task's file, called `name` or by its key.

        Duplicates are set aside.
        """
        device = parsed.header.target, parsed.header.hardware_params
        task = (parsed.header.workload_key, fused, device)
        programs = self._programs.setdefault(task, {})
        valid = parsed.error_no == 0
        if parsed.digest in programs:
            superseded = programs[parsed.digest] if valid else None
            file, number = superseded or place
            self._quarantine.add(file=file, line=number, reason=Reason.DUPLICATE)
            if superseded is None:
                return
            self._superseded.setdefault(task, set()).add(parsed.digest)
        programs[parsed.digest] = None if valid else place
        self._handle(self._path(task, name)).write(line.rstrip(b"\r") + b"\n")
        self.records += 1
        self.failed += not valid
        self.devices[device] += 1

    def result(self, files: int) -> ImportResult:
        """Return the counts of the finished import of so many files."""
        return ImportResult(
            records=self.records,
            failed=self.failed,
            tasks=len(self.paths),
            files=files,
            quarantined=dict(self._quarantine.counts),
            devices=self.devices,
            out=self._final,
        )

    def finish(self, compression: Compression) -> None:
        """Drop failed records that a valid record replaced; close, compress."""
        self.close()
        for task, digests in self._superseded.items():
            path = self.paths[task]
            with write_atomic(path) as kept, kept.open("wb") as handle:
                for _, line, parsed in parse_lines(path, Quarantine()):
                    if parsed.error_no != 0 and parsed.digest in digests:
                        self.records -= 1
                        self.failed -= 1
                    else:
                        handle.write(line + b"\n")
        if compression == "gz":
            for path in self.paths.values():
                compress(path)

    def close(self) -> None:
        """Close the task files."""
        while self._open:
            self._open.popitem()[1].close()

    def _path(self, task: _Task, name: str | None) -> Path:
        if task not in self.paths:
            workload_key, fused, _ = task
            name = name or parse_workload(workload_key).file_stem(fused)
            if name in self._names:  # the same work on another device
                name += "__" + sha256(repr(task).encode()).hexdigest()[:8]
            self._names.add(name)
            self.paths[task] = self._folder / f"{name}.json"
        return self.paths[task]

    def _handle(self, path: Path) -> IO[bytes]:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        # A log of a whole network mixes hundreds of tasks, more than the system's limit of open
        # files.
        if len(self._open) >= MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        self._open[path] = path.open("ab")
        return self._open[path]


def compress(path: Path) -> Path:
    """Replace a file by its gzip, ``<name>.gz``; return its path."""
    # No name and no time in the header: the same records give the same bytes.
    packed = path.with_name(path.name + ".gz")
    with (
        path.open("rb") as source,
        packed.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as target,
    ):
        shutil.copyfileobj(source, target, COPY_BYTES)
    path.unlink()
    return packed
