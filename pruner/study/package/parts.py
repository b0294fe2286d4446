"""Many files as one archive in parts of a size, each with its checksum."""

import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast

from pruner.errors import PrunerError


class PartWriter:
    """A file that goes on in the next part once `part_bytes` are written; `rows` are the parts.

    Raises:
        PrunerError: more than `most_bytes` in all.
    """

    def __init__(self, folder: Path, part_bytes: int, most_bytes: float = float("inf")) -> None:
        self._folder, self._part_bytes, self._most_bytes = folder, part_bytes, most_bytes
        self._file: IO[bytes] | None = None
        self._hash, self._size = sha256(), 0
        self.rows: list[dict[str, Any]] = []

    def write(self, data: bytes) -> int:
        """Write all of it."""
        rest = memoryview(data)
        while rest:
            if self._file is None:
                self._begin()
            piece = rest[: self._part_bytes - self._size]
            cast(IO[bytes], self._file).write(piece)
            self._hash.update(piece)
            self._size += len(piece)
            rest = rest[len(piece) :]
            if self._size == self._part_bytes:
                self.close()
        return len(data)

    def close(self) -> None:
        """End the part."""
        if self._file is not None:
            self._file.close()
            row = {"bytes": self._size, "sha256": self._hash.hexdigest()}
            self.rows.append({"name": self._name, **row})
        self._file = None

    @property
    def _name(self) -> str:
        return f"part-{len(self.rows):03d}"

    def _begin(self) -> None:
        if sum(row["bytes"] for row in self.rows) >= self._most_bytes:
            raise PrunerError(
                f"more than {self._most_bytes / 1e6:g} MB; leave something out (without=, data=) "
                "or allow more (most_mb=)"
            )
        self._file = (self._folder / self._name).open("wb")
        self._hash, self._size = sha256(), 0


def write_parts(
    folder: Path,
    contents: Mapping[str, Path],
    *,
    part_bytes: int,
    most_bytes: float = float("inf"),
) -> list[dict[str, Any]]:
    """Write files and folders, by their names in the archive, as parts into `folder`; their rows:
    name, bytes, sha256.

    Raises:
        PrunerError: more than `most_bytes`.
    """
    writer = PartWriter(folder, part_bytes, most_bytes)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], writer), mode="w|") as archive:
            for name, path in contents.items():
                archive.add(path, arcname=name, filter=_nobodys)
    finally:
        writer.close()
    return writer.rows


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of users of this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
