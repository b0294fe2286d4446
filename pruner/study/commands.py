"""Shell commands side by side, ended together when the start is interrupted.

What an item of the book runs is a command line with a log, so the processes are groups of
programs, not functions (`study/workers` runs those).
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TextIO, TypeVar

# One thread each: the workers already share the cores, and sums keep their order.
THREADS: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# A signal that the system gives to another thread is seen when this one wakes, so it never sleeps
# long: a book that was told to end once slept until its command was over.
_LOOK_S = 0.5
_Job = TypeVar("_Job")
Result = TypeVar("Result")


class Commands:
    """Shell commands of several threads, run in the folder `place`; `end` stops those that run.

    SIGTERM becomes an exit.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def __enter__(self) -> "Commands":
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def each(
        self, jobs: Sequence[_Job], run: Callable[[_Job], Result], num_workers: int
    ) -> Iterator[Result]:
        """Results of ``run(job)``, which may call `run`, as they end; `num_workers` at a time.

        Interrupted, or left early: nothing of it goes on in the background.
        """
        with ThreadPoolExecutor(num_workers) as pool:
            try:
                waiting = {pool.submit(run, job) for job in jobs}
                while waiting:
                    ended, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
                    for future in ended:
                        yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                raise

    def run(self, command: str | Sequence[str], log: TextIO) -> int:
        """Run a line of bash, or a program with its arguments, in `place`; its exit code."""
        line = command if isinstance(command, str) else shlex.join(command)
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=self._place,
            env=os.environ | THREADS,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, to be ended as a whole
        ) as process:
            self._running.add(process)
            if self._ended:  # while it was started
                _stop(process)
            try:
                return process.wait()
            finally:
                self._running.discard(process)

    def end(self) -> None:
        """Stop everything, what is being started too."""
        self._ended = True
        for process in list(self._running):
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # it is over
        os.killpg(process.pid, signal.SIGTERM)
