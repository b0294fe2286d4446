"""Real-time priority while a program is timed, so that other work on the machine disturbs less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run all threads of this process before any ordinary process, where the system permits it.

    Threads that are created meanwhile inherit the priority. Without the right to it (usually:
    not root), nothing changes.
    """
    _schedule(os.SCHED_FIFO, priority=1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, priority=0)


def _schedule(policy: int, priority: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
