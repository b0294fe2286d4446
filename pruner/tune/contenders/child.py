"""The process that holds one contender: ``python -m pruner.tune.contenders.child REQUEST``.

REQUEST is the JSON text of a :class:`Request`. Cores and threads are limited before anything that
makes threads is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pruner.processes import end_with_parent
from pruner.tune.contenders.protocol import Runner, serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which runner, and what it is told: its class in `runners` and the arguments of that."""

    runner: str
    arguments: Mapping[str, Any]
    threads: int

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of its process."""
        return (sys.executable, "-m", "pruner.tune.contenders.child", json.dumps(asdict(self)))

    @property
    def environment(self) -> dict[str, str]:
        """Equal threads for all, whichever library makes them."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
        return dict.fromkeys(names, str(self.threads))


def pin(threads: int) -> None:
    """Leave this process so many of its cores, the same ones for every contender."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _main(text: str) -> None:
    end_with_parent()  # who may be ended while a compiler works here for minutes
    request = Request(**json.loads(text))
    pin(request.threads)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the log

    def make() -> Runner:
        kinds = importlib.import_module("pruner.tune.contenders.runners")
        made: Runner = getattr(kinds, request.runner)(**request.arguments, threads=request.threads)
        return made

    serve(make, sys.stdin, answers)


if __name__ == "__main__":
    _main(sys.argv[1])
