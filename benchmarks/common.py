"""Common parts of the benchmarks: results by case, trees of earlier commits, memory."""

import json
import os
import resource
import subprocess
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def earlier(path: Path) -> dict[str, Any]:
    """Read a results file, to which cases are added; empty without the file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def taken_out(commit: str, folder: Path, *parts: str) -> Path:
    """The tree of a commit, or its `parts`, in a folder."""
    command = ["git", "archive", commit, *parts]
    packed = subprocess.run(command, cwd=HERE.parent, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")
    return folder


class Memory(threading.Thread):
    """The largest memory of this process and its descendants together, in bytes.

    ``bytes_of`` a process is looked up every ``period_s`` seconds.
    """

    def __init__(self, bytes_of: Callable[[int], int], period_s: float) -> None:
        super().__init__(daemon=True)
        self._bytes_of, self._period_s, self._most = bytes_of, period_s, 0
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Look until the end."""
        while not self._ended.wait(self._period_s):
            self._most = max(self._most, sum(map(self._bytes_of, _family(os.getpid()))))

    def end(self) -> int:
        """Stop sampling; returns bytes."""
        self._ended.set()
        self.join()
        return self._most


def resident(process: int) -> int:
    """Resident bytes of a process, with all of its shared pages."""
    words = _text(process, "statm").split()
    return int(words[1]) * resource.getpagesize() if words else 0


def proportional(process: int) -> int:
    """Resident bytes of a process, with its part of the shared pages."""
    found = [line.split() for line in _text(process, "smaps_rollup").splitlines()]
    return next((int(words[1]) * 1024 for words in found if words[0] == "Pss:"), 0)


def _family(process: int) -> list[int]:
    names = (f"task/{path.name}/children" for path in Path(f"/proc/{process}/task").glob("*"))
    children = (int(child) for name in names for child in _text(process, name).split())
    return [process, *(one for child in children for one in _family(child))]


def _text(process: int, name: str) -> str:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{process}/{name}").read_text()
    return ""
