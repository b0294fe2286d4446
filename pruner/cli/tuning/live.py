"""Show a run: redrawn on a terminal, a line each in logs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pruner.cli.shared.output import is_quiet, say
from pruner.cli.shared.progress import clock
from pruner.tune.run.budget import TuneBudget

Show = Callable[[Mapping[str, Any]], None]


class Pace:
    """Estimates the seconds left of a run, from its first seen row."""

    def __init__(self, budget: TuneBudget) -> None:
        self._budget = budget
        self._first: tuple[int, float] | None = None

    def left_s(self, trials: int, seconds: float) -> float | None:
        """Return the seconds left, None while unknown."""
        limits = [] if self._budget.seconds is None else [self._budget.seconds - seconds]
        if self._first is None:
            self._first = trials, seconds
        elif trials > self._first[0]:
            pace_s = (seconds - self._first[1]) / (trials - self._first[0])
            limits.append(pace_s * (self._budget.trials - trials))
        return max(0.0, min(limits)) if limits else None


def network_cells(row: Mapping[str, Any], budget: TuneBudget, left_s: float | None) -> list[str]:
    """Format a network's state after a round, in the order of :data:`HEADINGS`."""
    share = row["measured_share"]
    return [
        milliseconds(row["estimate_s"]),
        f"{share:.0%}",
        f"{row['trials']}/{budget.trials}",
        str(row["failures"]),
        clock(row["seconds"]),
        "?" if left_s is None else clock(left_s),
        f"{row['task']} {milliseconds(row['best_latency_s'])}",
    ]


HEADINGS = ("network", "measured", "trials", "failed", "spent", "left", "task")


def milliseconds(seconds: float) -> str:
    """Format seconds: 0.0243 becomes 24.3 ms, infinity a dash."""
    return "-" if seconds == float("inf") else f"{1e3 * seconds:.4g} ms"


def line(cells: list[str]) -> str:
    """Format cells as a line of a log."""
    pairs = zip(HEADINGS, cells, strict=True)
    return "  ".join(f"{name} {cell}" for name, cell in pairs)


def say_operator(budget: TuneBudget, pace: Pace, row: Mapping[str, Any]) -> None:
    """Print a line for a round of single operators."""
    left_s = pace.left_s(row["trials"], row["seconds"])
    left = "" if left_s is None else f"  left {clock(left_s)}"
    say(
        f"[{row['trials']}/{budget.trials}] {row['task']}: "
        f"best {milliseconds(row['best_latency_s'])}"
        f"  failed {row['failed']}  {row['seconds']:.1f} s{left}"
    )


def budget_line(budget: TuneBudget, *, build: bool) -> str:
    """Describe the end of a network's run and its counted seconds."""
    after = ", and building, checking and timing the network comes after it" if build else ""
    seconds = "" if budget.seconds is None else f" or {budget.seconds:g} s"
    return (
        f"budget: {budget.trials} programs{seconds} of drafting, measuring and learning; "
        f"the import is not in it{after}"
    )


@contextmanager
def network_display(budget: TuneBudget, console: Console | None = None) -> Iterator[Show]:
    """Show rows of the loop: a redrawn table, or a line each.

    ``measured`` is the share of arithmetic in tasks with a program that ran; ``network`` assumes
    the same speed for the other tasks.
    """
    console, pace = console or Console(stderr=True, quiet=is_quiet()), Pace(budget)

    def cells(row: Mapping[str, Any]) -> list[str]:
        return network_cells(row, budget, pace.left_s(row["trials"], row["seconds"]))

    if not console.is_terminal:
        yield lambda row: say(line(cells(row)))
        return
    with Live(console=console, auto_refresh=False) as live:

        def draw(row: Mapping[str, Any]) -> None:
            table = Table(*HEADINGS)
            table.add_row(*cells(row))
            live.update(table, refresh=True)

        yield draw
