"""The jobs of a baseline's worker: load, time turns, save outputs.

The worker is a fresh interpreter, whose environment limits the threads of every library before it
is imported.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

JOBS = __name__
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
_loaded: list[tuple[Runner, str]] = []  # with the path of its inputs


class Runner(Protocol):
    """A loaded network; `facts` are versions and seconds for tables."""

    facts: Mapping[str, Any]

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy inputs to the device."""

    def run(self, given: Any = None) -> Any:
        """Run a complete inference on prepared inputs, by default its own."""

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Convert a result of `run` to arrays."""


def thread_limits(threads: int) -> dict[str, str]:
    """Make the environment that limits the threads of all libraries."""
    return dict.fromkeys(_THREADS, str(threads))


def load(runner: str, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Load a network by a class of :mod:`~pruner.tune.compare.runners`; return its facts.

    The process keeps so many of its cores, the same cores for every baseline.
    """
    # affinity binds also libraries that ignore the variables of their thread pools
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    kinds = importlib.import_module("pruner.tune.compare.runners")
    made = getattr(kinds, runner)(**arguments, threads=threads)
    _loaded.append((made, arguments["inputs"]))
    return dict(made.facts)


def save(path: Path) -> None:
    """Run on the inputs of each compared call, and save the outputs."""
    importlib.import_module("pruner.tune.compare.runners").save_outputs(*_loaded[0], path)


def run_for(seconds: float) -> list[float]:
    """Return the latencies of a turn; see :func:`timed_turn`."""
    return timed_turn(_loaded[0][0].run, seconds)


def timed_turn(
    run: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Run until `seconds` are used; return the seconds of every run.

    The first run starts with caches that others filled and is not counted, unless it is longer than
    the turn: then it is the turn.
    """
    latencies_s: list[float] = []
    started = now = clock()
    while not latencies_s or now - started < seconds:
        run()
        before, now = now, clock()
        latencies_s.append(now - before)
    if latencies_s[0] < seconds and len(latencies_s) > 1:
        del latencies_s[0]
    return latencies_s
