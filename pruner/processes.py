"""Work in other processes, in three ways; none of them outlives this process.

* :func:`in_workers`: a function over jobs in worker processes, results as they end
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal

from pruner.errors import PrunerError

_PR_SET_PDEATHSIG = 1
_ENDED = (
    "a worker process was ended, perhaps for lack of memory (num_workers=1 needs less); the same "
    "command continues"
)


def end_with_parent() -> None:
    """End this process by SIGKILL as soon as its parent ends.

    The system sends no signal where the parent has ended before this call: then a worker of
    `multiprocessing` exits here. Otherwise it would wait for jobs for ever, since it holds the
    other end of its own queue.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


def nvidia_smi(*words: str) -> list[str] | None:
    """Lines that `nvidia-smi` prints, none where it fails; None where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["nvidia-smi", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode == 0:
            return done.stdout.splitlines()
    return []


@dataclass(frozen=True, slots=True)
class Done:
    """The value of a job in a worker, or the error that ended it."""

    value: Any = None
    error: PrunerError | None = None

    def get(self) -> Any:
        """Return the value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


@contextmanager
def in_workers(
    jobs: Sequence[Any],
    run: Callable[[Any], Any],
    number: int,
    *,
    tell: Callable[[str], None] = lambda _: None,
    method: Literal["fork", "spawn"] = "fork",
) -> Iterator[Callable[..., Iterator[Done]]]:
    """Run the jobs in `number` processes, first come, first served, while the body goes on.

    Yields a function that iterates over the jobs as they end, for at most so many seconds; `tell`
    gets a line for each error. Leaving the body ends the processes at once. Forked workers share
    what this process has read; spawned workers are fresh interpreters, which cannot hang in a lock
    that a thread of this process holds, and `jobs` and `run` must be picklable.

    Raises:
        PrunerError: torch has several threads here, for which a fork might wait for ever.
    """
    torch = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.get_num_threads() > 1:
        raise PrunerError(f"{number} processes: several processes need num_threads=1")
    context = multiprocessing.get_context(method)
    taken = context.Value("i", 0)
    processes: dict[Any, Any] = {}

    def ended(timeout_s: float | None = None) -> Iterator[Done]:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        working = dict(processes)
        while working:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            ready = wait(list(working), left_s)
            if not ready:
                return
            for pipe in ready:
                try:
                    done: Done = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    process = working.pop(pipe)
                    process.join()
                    if not process.exitcode:  # there were no more jobs
                        continue
                    done = Done(error=PrunerError(_ENDED))
                if done.error is not None:
                    tell(f"error: {done.error}")
                yield done

    try:
        for _ in range(number):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_take_jobs, args=(jobs, run, taken, theirs))
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            processes[ours] = process
        yield ended
    finally:
        for process in processes.values():
            process.kill()  # on SIGTERM Lightning would wait for the other processes of a fit
            process.join()


def _take_jobs(jobs: Sequence[Any], run: Callable[[Any], Any], taken: Any, results: Any) -> None:
    end_with_parent()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(jobs):
            return
        try:
            done = Done(run(jobs[number]))
        except PrunerError as error:
            done = Done(error=error)
        results.send(done)
