"""Atomic writes, lines with checksums, folder locks."""

import csv
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
import socket
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from pruner.errors import OF_DISKS, DataError, PrunerError

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.json"  # of every finished run
ABANDONED_S = 86400.0  # age of partial files and folders that nobody writes any more
LOCK_FILE = ".lock"  # of a run folder: process and machine that hold it
_SEAL = b',"crc32":"'
_SEAL_BYTES = len(_SEAL) + 8 + 2  # the number in hexadecimal, a quote and a brace
Json = TypeVar("Json")


@contextmanager
def write_atomic(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Yield a file to write, which replaces `path` after success.

    A reader sees the old file or the new one, also after an error, or a machine that stops. Without
    `lasting` the latter may damage it: for content that is checked and can be made again.
    """
    # Machines may share the folder; eight digits, since a name has a longest length.
    host = f"{zlib.crc32(os.fsencode(socket.gethostname())):08x}"
    partial = path.with_name(f".{path.name}.{host}.{os.getpid()}.part")
    # left by a kill, or put there
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        number = left.suffixes[-2].removeprefix(".")
        is_ours = left.name.startswith(f".{path.name}.{host}.") and number.isdigit()
        if left == partial or (is_ours and not Path(f"/proc/{number}").exists()) or _is_old(left):
            left.unlink(missing_ok=True)
    try:
        yield partial
        if lasting:
            _to_disk(partial)
        partial.replace(path)
        if lasting:
            names_to_disk(path.parent)
    except OSError as error:
        if error.filename is None and error.errno in OF_DISKS:  # name the file in the message
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime < time.time() - ABANDONED_S
    return False


def names_to_disk(folder: Path) -> None:
    """Sync a folder's names to the disk, where the file system can."""
    with suppress(OSError):
        _to_disk(folder)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(line: bytes) -> bytes:
    """Append a checksum to a JSON object, as its last member."""
    return b'%s%s%08x"}' % (line[:-1], _SEAL, zlib.crc32(line))


def unsealed(line: bytes) -> bytes:
    """Return the line of `sealed`; raise `ValueError` where its checksum differs."""
    seal = line[-_SEAL_BYTES:]
    if not (seal.startswith(_SEAL) and seal.endswith(b'"}')):
        return line
    whole = line[:-_SEAL_BYTES] + b"}"
    if seal[len(_SEAL) : -2] != b"%08x" % zlib.crc32(whole):
        raise ValueError("it does not match its checksum")
    return whole


def own_file(path: Path) -> Path:
    """Return a file to be changed; raise `DataError` for a link to another file."""
    if path.is_symlink():
        raise DataError(f"{path}: a link, so another file would be changed; put a file there")
    return path


def check_links(folder: Path) -> None:
    """Raise `DataError` where a run folder, without W&B's, links to files outside."""
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "wandb"]
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(whole):
                raise DataError(
                    f"{path}: a link to {path.resolve()}, which would be written to; a run keeps "
                    "its files in its folder: put the file itself there, or remove it"
                )


def files_below(folder: Path) -> list[Path]:
    """List the files below a folder, also through links; warn of unreadable folders."""

    def left_out(error: OSError) -> None:
        log.warning("left out: %s: %s", error.filename, error.strerror)

    found: list[Path] = []
    seen: set[str] = set()  # a link may lead to a folder above it
    for place, folders, names in os.walk(folder, onerror=left_out, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        found += (Path(place, name) for name in names)
    return sorted(path for path in found if path.is_file())


def append_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Append and sync a line; raise `OSError` where a part may be left."""
    try:
        if file.write(line + b"\n") != len(line) + 1:  # a disk that is full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class JsonLines:
    """An append-only file of JSON objects with checksums, on disk line by line."""

    def __init__(self, path: Path) -> None:
        """Create the file, or cut an incomplete line; raises `DataError` for a link."""
        self.path = own_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        names_to_disk(path.parent)
        cut_incomplete_line(path)

    def append(self, value: Mapping[str, Any]) -> None:
        """Append an object; raise `OSError` like `append_line`."""
        line = json.dumps(value, separators=(",", ":")).encode()
        with self.path.open("ab", buffering=0) as file:
            append_line(file, sealed(line), self.path)


def cut_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line, which a kill may leave."""
    if path.is_file():
        data = path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete != len(data):
            os.truncate(path, complete)


def complete_lines(path: Path) -> list[bytes]:
    """Return complete lines of a file that may be absent or still be growing."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def json_of(line: bytes) -> dict[str, Any]:
    """Parse a line of `JsonLines`; raise `ValueError` where damaged."""
    try:
        found = json.loads(unsealed(line))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def hold(folder: Path) -> int:
    """Lock a folder for this process; return the lock's descriptor.

    The system's lock lasts until the descriptor is closed or the process ends; a process may take
    it twice. Without locks, a live process in the file counts. Raises `PrunerError` if another has
    it.
    """
    path = own_file(folder / LOCK_FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # closing it gives the lock back
    free = True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        free = False
    except OSError:  # no locks on this file system
        number, host = _owner(path)
        elsewhere = host != socket.gethostname()  # where it cannot be seen whether it lives
        free = not (number > 0 and (elsewhere or Path(f"/proc/{number}").exists()))
    number, host = _owner(path)
    if not free and (number, host) != (os.getpid(), socket.gethostname()):
        os.close(descriptor)
        raise PrunerError(
            f"{folder}: process {number} on {host} works in it; wait until it has ended, or end it"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return descriptor


@contextmanager
def held(*folders: Path) -> Iterator[None]:
    """Lock folders during the body; raise like `hold`."""
    with ExitStack() as stack:
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            stack.callback(os.close, hold(folder))
        yield


@contextmanager
def temporaries_in(folder: Path) -> Iterator[None]:
    """Put temporary files, also of processes started here, into an own folder.

    Not around multiprocessing, whose sockets need short paths.
    """
    before, environment = tempfile.tempdir, os.environ.get("TMPDIR")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.resolve())
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        os.environ |= {} if environment is None else {"TMPDIR": environment}
        shutil.rmtree(folder, ignore_errors=True)


def _owner(path: Path) -> tuple[int, str]:
    number, _, host = path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    return (int(number) if number.isdigit() else 0), host


def jsonable(value: Any) -> Any:
    """Convert to plain JSON values; NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    # NumPy's and torch's numbers and arrays, which may hold NaN too
    return jsonable(value.tolist()) if hasattr(value, "tolist") else value


def write_text(path: Path, text: str) -> None:
    """Write a text atomically."""
    with write_atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write a JSON value atomically."""
    write_text(path, json.dumps(jsonable(value), indent=indent) + "\n")


@overload
def read_json(path: Path) -> Any: ...
@overload
def read_json(path: Path, kind: type[Json]) -> Json: ...
def read_json(path: Path, kind: type[Any] | None = None) -> Any:
    """Read a JSON value; raise `DataError` where damaged or of another `kind`."""
    with as_written(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        if kind is not None and not isinstance(found, kind):
            raise TypeError(f"a {type(found).__name__}, not a {kind.__name__}")
    return found


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Turn errors of reading `path` into a `DataError` that names it."""
    try:
        yield
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        csv.Error,
    ) as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise DataError(
            f"{path}: damaged ({message}); restore it, or delete it to make it again"
        ) from error


def digest_of(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of files, in order, as hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write_checksums(folder: Path, paths: Iterable[Path]) -> Path:
    """Write ``SHA256SUMS`` over the existing paths, for ``sha256sum -c``."""
    lines = [
        f"{digest_of([path])}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(paths)
        if path.is_file()
    ]
    sums = folder / "SHA256SUMS"
    write_text(sums, "".join(lines))
    return sums


def save_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` of a run."""
    write_json(folder / METRICS_FILE, metrics, indent=1)


def load_metrics(folder: Path) -> dict[str, Any] | None:
    """Read a run's metrics, None if absent; raise like `read_json`."""
    path = folder / METRICS_FILE
    return read_json(path, dict) if path.is_file() else None


def read_table(path: Path) -> list[dict[str, str]]:
    """Read rows of a CSV file as text; none without file; `DataError` if damaged."""
    if not path.is_file():
        return []
    with as_written(path), path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], floats: str = "") -> None:
    """Write a CSV file; columns in order of first occurrence, numbers as `floats`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with write_atomic(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({
                name: format(value, floats) if isinstance(value, float) else value
                for name, value in row.items()
            })  # fmt: skip


def merged_table(
    path: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return the table in `path`, with `rows` in place of rows of equal `key`.

    Raises `DataError` where the table in `path` lacks a column of `key`.
    """
    before = read_table(path)
    if before and (lacking := [name for name in key if name not in before[0]]):
        raise DataError(f"{path}: another table, without column {lacking[0]}; name another file")
    fresh = {tuple(str(row[name]) for name in key) for row in rows}
    kept = [row for row in before if tuple(row[name] for name in key) not in fresh]
    return [*kept, *rows]
