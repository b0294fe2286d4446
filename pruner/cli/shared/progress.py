"""Progress bars on stderr, or lines, with rate and time left."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pruner import progress
from pruner.cli.shared.output import say

_Item = TypeVar("_Item")
SILENCE_S = 5.0  # seconds after which a log gets a line


class RateColumn(ProgressColumn):
    """Steps a second, or seconds a step if slow."""

    def render(self, task: Task) -> Text:
        """Format the rate; empty while unknown."""
        return Text(rate(task.speed) if task.speed else "")


def rate(per_second: float) -> str:
    """Format a rate: 2.5 becomes 2.5/s, 0.1 becomes 10 s each."""
    return f"{per_second:.3g}/s" if per_second >= 1 else f"{1 / per_second:.3g} s each"


def clock(seconds: float) -> str:
    """Format minutes and seconds: 205 becomes 3:25."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextmanager
def live_bar() -> Iterator[Progress]:
    """Open a rich progress display on stderr, hidden without a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:
        yield display


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a count of a total; without a terminal, occasional lines."""
    start = last_logged = time.monotonic()
    with live_bar() as display:
        bar = display.add_task(what, total=None, note="")

        def count(done: int, total: int) -> None:
            nonlocal last_logged
            display.update(bar, completed=done, total=total)
            now = time.monotonic()
            if display.disable and now - last_logged >= SILENCE_S and 0 < done < total:
                last_logged = now
                speed = done / (now - start)
                left = (total - done) / speed
                say(f"{what}: {done} of {total}, {rate(speed)}, about {left:.0f} s left")

        yield count


def track(items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
    """Yield items while counting on a progress bar."""
    with counting(what) as count:
        count(0, total)
        for done, item in enumerate(items, 1):
            yield item
            count(done, total)


ON_STDERR = progress.Progress(log=say, track=track)  # for functions of the other packages
