"""Bars on stderr, hidden when it is not a terminal."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")


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


def track(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Pass items on while a bar counts them."""
    with live_bar() as progress:
        bar = progress.add_task(what, total=total, note="")
        for item in items:
            yield item
            progress.advance(bar)
