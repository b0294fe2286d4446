"""Files that are there whole or not at all: results as JSON, tables as CSV."""

import csv
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.json"  # of every finished run: the object of its last line


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Give a file beside `path` to write to; it takes the place of `path` once all went well.

    A reader sees the old file or the new one, never a part; an error leaves the old one, and so
    does a machine that stops: content and name are on the disk before this returns.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        _to_disk(partial)
        partial.replace(path)
        with suppress(OSError):  # not every file system can do that of a folder
            _to_disk(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def save_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json`` of a run."""
    write_json(folder / METRICS_FILE, metrics, indent=1)


def load_metrics(folder: Path) -> dict[str, Any] | None:
    """What `save_metrics` wrote, None where it has not yet."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return None
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file as text by column; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
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
