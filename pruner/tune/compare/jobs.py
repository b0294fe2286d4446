"""What the worker of a contender does: load a network, time turns of it, save its outputs.

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

import numpy as np
from numpy.typing import NDArray

JOBS = __name__
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
_loaded: list[Runner] = []


class Runner(Protocol):
    """A network that is loaded; `facts` are versions and seconds for people and tables."""

    facts: Mapping[str, Any]

    def run(self) -> Any:
        """One inference on the inputs, to its end."""

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """What `run` returned, as arrays."""


def thread_limits(threads: int) -> dict[str, str]:
    """The environment with equal threads for all, whichever library makes them."""
    return dict.fromkeys(_THREADS, str(threads))


def load(runner: str, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Load a network by a class of :mod:`~pruner.tune.compare.runners`; its facts.

    The process keeps so many of its cores, the same ones for every contender.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    kinds = importlib.import_module("pruner.tune.compare.runners")
    _loaded.append(getattr(kinds, runner)(**arguments, threads=threads))
    return dict(_loaded[0].facts)


def save(path: Path) -> None:
    """Save the outputs of one run, in order."""
    runner = _loaded[0]
    np.savez(path, *runner.outputs(runner.run()))


def run_for(seconds: float) -> list[float]:
    """The latencies of a turn, see :func:`timed_turn`."""
    return timed_turn(_loaded[0].run, seconds)


def timed_turn(
    run: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of every run of a turn that ends once `seconds` are used.

    The first run finds the caches as others left them and is not counted, unless it is longer than
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
