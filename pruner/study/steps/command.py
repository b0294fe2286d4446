"""One command with a limit of seconds: first it is asked to end, then it is ended."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pruner.commands import Commands

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
    """Run a program in `place`, its output and errors in `log`; see :meth:`Commands.run`."""
    code = Commands(place, environment).run(words, log, limit_s=limit_s)
    return Ended(code=code, line=_last_line(log))


def _last_line(log: Path) -> str:
    with log.open("rb") as content:
        content.seek(max(0, log.stat().st_size - TAIL))
        lines = content.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
