"""Atomic writes, lines with checksums, folder locks."""

import csv
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO, Any, TypeVar, overload

from pruner.errors import DataError, PrunerError

METRICS_FILE = "metrics.json"  # of every finished run: the object of its last line
LOCK_FILE = ".lock"  # of a run folder: who works in it
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a write does not name its file
_SEAL = b',"crc32":"'
_SEAL_BYTES = len(_SEAL) + 8 + 2  # the number in hexadecimal, a quote and a brace
Json = TypeVar("Json")


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Give a file beside `path` to write to; it takes the place of `path` once all went well.

    A reader sees the old file or the new one, never a part; an error leaves the old one, and so
    does a machine that stops: content and name are on the disk before this returns.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):  # by a kill, or put there
        number = left.suffixes[-2].removeprefix(".")
        if left == partial or (number.isdigit() and not Path(f"/proc/{number}").exists()):
            left.unlink(missing_ok=True)
    try:
        yield partial
        _to_disk(partial)
        partial.replace(path)
        names_to_disk(path.parent)
    except OSError as error:
        if error.filename is None and error.errno in _OF_DISKS:  # whoever reads it wants to know
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def names_to_disk(folder: Path) -> None:
    """Have the names in a folder on the disk; not every file system can do that."""
    with suppress(OSError):
        _to_disk(folder)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(line: bytes) -> bytes:
    """A JSON object on one line with a checksum of the rest as its last member."""
    return b'%s%s%08x"}' % (line[:-1], _SEAL, zlib.crc32(line))


def unsealed(line: bytes) -> bytes:
    """What `sealed` was given. Lines of older versions, which have no checksum, pass.

    Raises:
        ValueError: the line is not as it was written.
    """
    seal = line[-_SEAL_BYTES:]
    if not (seal.startswith(_SEAL) and seal.endswith(b'"}')):
        return line
    whole = line[:-_SEAL_BYTES] + b"}"
    if seal[len(_SEAL) : -2] != b"%08x" % zlib.crc32(whole):
        raise ValueError("it does not match its checksum")
    return whole


def own_file(path: Path) -> Path:
    """The path, for a file that is changed where it lies.

    Raises:
        DataError: a link, which a folder of somebody else may have to any file of this user.
    """
    if path.is_symlink():
        raise DataError(f"{path}: a link, so another file would be changed; put a file there")
    return path


def check_links(folder: Path) -> None:
    """Raise `DataError` where writing into a run folder would change files outside it.

    W&B's own folder is left out: it has links to logs, and nothing of ours is written there.
    """
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "wandb"]
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(whole):
                raise DataError(
                    f"{path}: a link to {path.resolve()}, which would be written to; a run keeps "
                    "its files in its folder: put the file itself there, or remove it"
                )


def append_line(file: IO[bytes], line: bytes, path: Path) -> None:
    """Add one line to a file opened without buffer, and have it on the disk.

    Raises:
        OSError: that was not possible, with `path`. A part of the line may be there, which is cut
            off by whoever opens the file next: nothing may be written behind it.
    """
    try:
        if file.write(line + b"\n") != len(line) + 1:  # a disk that is full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class JsonLines:
    """An append-only file of JSON objects, one a line, each with a checksum and on the disk."""

    def __init__(self, path: Path) -> None:
        """Make the file, or cut off what a kill left behind its last newline.

        Raises:
            DataError: it is a link.
        """
        self.path = own_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        names_to_disk(path.parent)
        cut_incomplete_line(path)

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one object. Raises `OSError` like `append_line`."""
        line = json.dumps(value, separators=(",", ":")).encode()
        with self.path.open("ab", buffering=0) as file:
            append_line(file, sealed(line), self.path)


def cut_incomplete_line(path: Path) -> None:
    """Remove what a kill left behind the last newline."""
    if path.is_file():
        data = path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete != len(data):
            os.truncate(path, complete)


def complete_lines(path: Path) -> list[bytes]:
    """Lines of a file that another process may be writing; none where there is no file."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def json_of(line: bytes) -> dict[str, Any]:
    """The object of a line of `JsonLines`. Raises `ValueError` where it is damaged."""
    try:
        found = json.loads(unsealed(line))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def hold(folder: Path) -> int:
    """Take a folder for this process until it ends, however it ends, or closes the descriptor.

    The lock is the system's, so one of a process that died counts for nothing; where a file system
    has none, whether the process that it names is alive decides. A process may take a folder twice.

    Raises:
        PrunerError: another process works in it, or its lock is a link.
    """
    path = own_file(folder / LOCK_FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # closing it gives the lock back
    free = True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        free = False
    except OSError:  # no locks on this file system
        free = not _lives(_owner(path))
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
    """Take folders as long as this lasts. Raises like `hold`."""
    with ExitStack() as stack:
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            stack.callback(os.close, hold(folder))
        yield


@contextmanager
def temporaries_in(folder: Path) -> Iterator[None]:
    """Have this process, and those it starts, put temporary files into a folder that is emptied
    first and removed at the end: what a kill leaves there goes with the next start.

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
    """Process and machine that a lock names."""
    number, _, host = path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    return (int(number) if number.isdigit() else 0), host


def _lives(owner: tuple[int, str]) -> bool:
    """Whether that process is there, as far as this machine can tell."""
    number, host = owner
    return number > 0 and (host != socket.gethostname() or Path(f"/proc/{number}").exists())


def jsonable(value: Any) -> Any:
    """Plain JSON values; numbers that JSON does not know become null."""
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


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write one JSON value."""
    with write_whole(path) as partial:
        partial.write_text(json.dumps(jsonable(value), indent=indent) + "\n", encoding="utf-8")


@overload
def read_json(path: Path) -> Any: ...
@overload
def read_json(path: Path, kind: type[Json]) -> Json: ...
def read_json(path: Path, kind: type[Any] | None = None) -> Any:
    """What `write_json` wrote. Raises `DataError` where the file is damaged, or not of the kind."""
    with as_written(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        if kind is not None and not isinstance(found, kind):
            raise TypeError(f"a {type(found).__name__}, not a {kind.__name__}")
    return found


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Take what a file of ours holds as it was written; raise `DataError` where it does not fit."""
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
        told = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise DataError(
            f"{path}: damaged ({told}); restore it, or delete it to make it again"
        ) from error


def write_checksums(folder: Path, paths: Iterable[Path]) -> Path:
    """Write ``SHA256SUMS`` over those of the paths that are files, as ``sha256sum -c`` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(paths)
        if path.is_file()
    ]
    sums = folder / "SHA256SUMS"
    with write_whole(sums) as partial:
        partial.write_text("".join(lines), encoding="utf-8")
    return sums


def save_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` of a run."""
    write_json(folder / METRICS_FILE, metrics, indent=1)


def load_metrics(folder: Path) -> dict[str, Any] | None:
    """What `save_metrics` wrote, None where it has not yet. Raises `DataError` like `read_json`."""
    path = folder / METRICS_FILE
    return read_json(path, dict) if path.is_file() else None


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file as text by column; none where there is no file.

    Raises:
        DataError: it is no text, or no table.
    """
    if not path.is_file():
        return []
    with as_written(path), path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], floats: str = "") -> None:
    """Write a CSV file, folder included; columns in the order in which the rows first name them.

    `floats` is their format, such as ".6g"; by default all digits. What a row lacks stays empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with write_whole(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
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
    """Rows of the table in `path` with those of the same `key` columns replaced, new ones last."""
    fresh = {tuple(str(row[name]) for name in key) for row in rows}
    kept = [row for row in read_table(path) if tuple(row[name] for name in key) not in fresh]
    return [*kept, *rows]
