"""Bars on stderr; where it is no terminal, lines with an estimate."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pruner.cli.shared.output import say

_Item = TypeVar("_Item")
SILENCE_S = 10.0  # seconds after which a log gets a line


@contextmanager
def live_bar() -> Iterator[Progress]:
    """A rich progress display on stderr, hidden when stderr is not a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many of how many are done; without a terminal, a line now and then."""
    start = told = time.monotonic()
    with live_bar() as progress:
        bar = progress.add_task(what, total=None, note="")

        def count(done: int, total: int) -> None:
            nonlocal told
            progress.update(bar, completed=done, total=total)
            now = time.monotonic()
            if progress.disable and now - told >= SILENCE_S and 0 < done < total:
                told = now
                left = (now - start) / done * (total - done)
                say(f"{what}: {done} of {total}, about {left:.0f} s left")

        yield count


def track(items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
    """Pass items on while they are counted."""
    with counting(what) as count:
        count(0, total)
        for done, item in enumerate(items, 1):
            yield item
            count(done, total)
