"""One command with a limit of seconds: first it is asked to end, then it is ended."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ASKED_S = 30.0  # to keep its best, once asked
_PLAIN = re.compile(r"[\w./+@-]+")
PARTLY = 3  # exit code of a command that did its work, of which some part came to nothing
TAIL = 4096  # bytes of a log in which the last line is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: exit code, None where the limit ended it; the last line of its log."""

    code: int | None
    line: str

    @property
    def well(self) -> bool:
        """Whether it did its work: what it leaves counts."""
        return self.code in (0, PARTLY)


def quoted(path: Path) -> str:
    """A path as the value of an option, in quotes where the commands would read it otherwise.

    >>> quoted(Path("a/b-1.json")), quoted(Path("my runs, new"))
    ('a/b-1.json', "'my runs, new'")
    """
    text = str(path)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def started(words: Sequence[str], place: Path) -> list[str]:
    """What to run for the words of a step, with this Python: ``FILE.py`` is a script below `place`,
    another first word a command of this project, which is found as it is installed."""
    first, *options = words
    if first.endswith(".py"):
        return [sys.executable, str(place / first), *options]
    return [sys.executable, "-m", f"pruner.cli.{first}", *options]


def run_command(
    words: Sequence[str],
    log: Path,
    *,
    place: Path,
    limit_s: float = float("inf"),
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program in `place`, its output and errors in `log`.

    After `limit_s` its group gets SIGINT, for which a run keeps its best, and `ASKED_S` later
    SIGKILL. An error or interrupt here ends it in the same way.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    timeout = None if limit_s == float("inf") else max(0.0, limit_s)
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            cwd=place,
            env={**os.environ, **(environment or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, to be ended as a whole
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    return Ended(code=code, line=_last_line(log))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, then make it, at once where somebody insists."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(ASKED_S)
    finally:
        with suppress(ProcessLookupError):  # children that it has left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    with log.open("rb") as content:
        content.seek(max(0, log.stat().st_size - TAIL))
        lines = content.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
