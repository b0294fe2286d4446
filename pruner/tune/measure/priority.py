"""Real-time priority while a program is timed, against disturbance by other work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run all threads of this process before ordinary processes, where permitted.

    Threads that are created meanwhile inherit the priority. Without the right to it (usually:
    not root), nothing changes.
    """
    _schedule(os.SCHED_FIFO, priority=1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, priority=0)


def _schedule(policy: int, priority: int) -> None:
    # TVM's thread pool exists already, and Linux sets the policy of single threads only
    for thread in Path("/proc/self/task").iterdir():
        with suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
