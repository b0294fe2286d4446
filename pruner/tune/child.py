"""A job in a process of its own: its output is a log file, its mistakes come back as one line.

What is imported, built or loaded there may print, take gigabytes and crash: that ends with it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import write_json

_MISTAKE = 2  # exit code: the last line of the log is for the user


def run_child(module: str, argument: Path, log: Path) -> None:
    """Run ``python -m MODULE ARGUMENT`` to its end.

    Raises:
        PrunerError: what it wrote last, where it ended within :func:`told_in_one_line`, else its
            exit code; and where the log is.
    """
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, "-m", module, str(argument)],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        what = lines[-1] if lines and done.returncode == _MISTAKE else f"exit {done.returncode}"
        raise PrunerError(f"{what}; {log} has the whole output")


def ask_child(module: str, request: Mapping[str, Any], log: Path) -> None:
    """:func:`run_child` on a JSON file of `request`, which lies beside the log while it runs.

    Raises:
        PrunerError: see there.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    asked = log.with_suffix(".request.json")
    write_json(asked, request, indent=1)
    try:
        run_child(module, asked, log)
    finally:
        asked.unlink()


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """In the child: a `PrunerError` inside is its last line."""
    try:
        yield
    except PrunerError as error:
        sys.stderr.write(f"\n{error}\n")
        sys.exit(_MISTAKE)
