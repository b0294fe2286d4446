"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Give a file beside `path` to write to; it takes the place of `path` once all went well.

    A reader sees the old file or the new one, never a part; an error leaves the old one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
