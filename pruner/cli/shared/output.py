"""Print lines on stderr, and a JSON object as last stdout line."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import jsonable, read_table

UNSUCCESSFUL, UNSUCCESSFUL_CODE = "unsuccessful", 3  # parts of a result that came to nothing
FEW = 5  # tasks below which the numbers say little
_SHOWN = 8
_NAME = 44
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def say(line: str) -> None:
    """Print a line for the user on stderr."""
    if not is_quiet():
        print(line, file=sys.stderr, flush=True)


@contextmanager
def quiet(asked: bool = True) -> Iterator[None]:
    """Silence all lines for the user inside, if `asked` is true."""
    before = _QUIET.set(asked)
    try:
        yield
    finally:
        _QUIET.reset(before)


def is_quiet() -> bool:
    """True if lines for the user are silenced."""
    return _QUIET.get()


def check_file(option: str, path: str | Path | None) -> None:
    """Refuse a folder where a command writes a file, before its work (`PrunerError`)."""
    if path is not None and Path(path).is_dir():
        raise PrunerError(f"{option}={path}: a folder; name a file in it, such as results.csv")


def print_text(text: str) -> None:
    """Print to stdout; a closed pipe, as of `head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_result(result: Mapping[str, Any]) -> None:
    """Print an object as a JSON line on stdout."""
    print(json.dumps(jsonable(result)), flush=True)


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows in columns of equal width, numbers with four digits."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    text = [names, *([cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in text) for column in range(len(names))]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in text)
    return "\n".join(lines)


def show_tasks(path: Path, *, num_tasks: int | None = None, of: str = "") -> None:
    """Print the worst-ranked tasks, and a warning if there are few.

    `num_tasks`: number of judged tasks in all; `of`: the part that the file contains, if any.
    """
    rows = sorted(read_table(path), key=lambda row: float(row["top1"]))
    judged = len(rows) if num_tasks is None else num_tasks
    if judged < FEW:
        plural = "" if judged == 1 else "s"
        say(
            f"warning: judged on {judged} task{plural} only; these numbers say little about "
            "others (add records, or another split.seed)"
        )
    worst = f"the {_SHOWN} worst of {len(rows)} tasks" if len(rows) > _SHOWN else "tasks"
    if of:
        say(f"{worst} of {of}:")
        worst = ""
    say(f"{worst:{_NAME}s} programs   top1 random   top5  pairs  best ms chosen ms")
    for row in rows[:_SHOWN]:
        task = row["task"] if len(row["task"]) <= _NAME else "..." + row["task"][3 - _NAME :]
        say(
            f"{task:{_NAME}s} {row['num_programs']:>8s} {float(row['top1']):6.3f} "
            f"{float(row['random_top1']):6.3f} {float(row['top5']):6.3f} "
            f"{float(row['pairwise_accuracy']):6.3f} {float(row['best_latency_s']) * 1e3:8.3g} "
            f"{float(row['chosen_latency_s']) * 1e3:9.3g}"
        )
    say(f"every task: {path}")
