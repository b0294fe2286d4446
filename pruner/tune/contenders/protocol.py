"""What a contender's process and ours say to each other: one JSON object a line.

The process first answers without being asked, once it could run: ``{"ready": {facts}}``. Then

* ``{"run_for_s": 0.3}`` is answered by ``{"latencies_s": [...]}``, see :func:`timed_turn`;
* ``{"save": "FILE.npz"}`` by ``{"saved": "FILE.npz"}``, the outputs of one run in order;

and ``{"error": "one line"}`` may be the answer to everything: the process ends after it. It ends
too when its input does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

LATENCIES, SAVED, READY, ERROR = "latencies_s", "saved", "ready", "error"
RUN_FOR_S, SAVE = "run_for_s", "save"


class Runner(Protocol):
    """A network that is loaded; `facts` are versions and seconds for people and tables."""

    facts: Mapping[str, Any]

    def run(self) -> Any:
        """One inference on the inputs, to its end."""

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """What `run` returned, as arrays."""


def serve(make: Callable[[], Runner], asked: TextIO, answers: TextIO) -> None:
    """Answer until there are no more questions; a failure is the last answer."""

    def answer(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        runner = make()
        answer({READY: dict(runner.facts)})
        for line in asked:
            answer(_answered(json.loads(line), runner))
    except Exception as error:  # whatever a library raises costs this contender only
        answer({ERROR: one_line(error)})
        raise


def _answered(question: Mapping[str, Any], runner: Runner) -> dict[str, Any]:
    if SAVE in question:
        path = Path(question[SAVE])
        np.savez(path, *runner.outputs(runner.run()))
        return {SAVED: str(path)}
    return {LATENCIES: timed_turn(runner.run, question[RUN_FOR_S])}


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


def one_line(error: BaseException) -> str:
    """An exception in one line of at most some three hundred characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
