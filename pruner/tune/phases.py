"""Measure the seconds of each phase of a run, and idle time."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("sample", "draft", "verify", "instantiate", "build", "run", "train")
IDLE = "idle"


class Phases:
    """A stopwatch with nested phases: the inner counts, the outer pauses.

    Build and run are the seconds that the loop waited for workers; what workers do while the loop
    explores costs no time here. ``check`` is called before every phase: an exception of it ends the
    work between two phases.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._before_s = 0.0
        self._started = self._since = time.perf_counter()
        self._open: list[str] = []
        self.check: Callable[[], None] = lambda: None

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of an earlier start of the run."""
        for name in PHASES:
            self._seconds[name] += seconds[name]
        self._before_s += sum(seconds.values())

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Count the time inside as `phase`."""
        self.check()
        # closes the account of the outer phase before the inner phase begins
        self._settle()
        self._open.append(phase)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    @property
    def elapsed_s(self) -> float:
        """Seconds of the complete run, including the time before a resumption."""
        return self._before_s + time.perf_counter() - self._started

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase; with ``idle`` they add up to `elapsed_s`."""
        self._settle()
        idle = max(0.0, self.elapsed_s - sum(self._seconds.values()))
        return {**self._seconds, IDLE: idle}


@contextmanager
def counted(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Add the time inside to the seconds of a step."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start
