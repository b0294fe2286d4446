"""Work in other processes, in three ways; none of them outlives this process.

* :func:`in_workers`: a function over jobs in worker processes, results as they end
* :class:`Commands`: programs with logs and time limits
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, Self

from pruner.errors import PrunerError

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.2  # how soon a wait notices a signal, or that it is wanted no more
# One thread each: commands side by side share the cores already, and sums keep their order.
ONE_THREAD: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
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


class Commands:
    """Programs of several threads, each with its output in a log and in a process group of its own.

    `end` stops all that run. As a context manager, SIGTERM becomes an exit of this process.
    """

    def __init__(
        self, place: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """``place``: where they run; ``environment``: variables in addition to those of here."""
        self._place, self._environment = place, environment or {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def each(
        self, jobs: Sequence[Any], run: Callable[[Any], Any], num_workers: int
    ) -> Iterator[Any]:
        """Results of ``run(job)``, which may call `run`, as they end; `num_workers` at a time.

        Where it is interrupted or left early, nothing goes on in the background.
        """
        with ThreadPoolExecutor(num_workers) as pool:
            try:
                waiting = {pool.submit(run, job) for job in jobs}
                while waiting:
                    # A signal that the system gives to another thread is handled when this thread
                    # wakes, so it never waits until a command is over.
                    ended, waiting = wait_for_futures(waiting, _LOOK_S, FIRST_COMPLETED)
                    for future in ended:
                        yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                raise

    def run(
        self,
        command: str | Sequence[str],
        log: Path,
        *,
        append: bool = False,
        limit_s: float = math.inf,
        patience_s: float = 30.0,
        watch: Callable[[], bool] | None = None,
    ) -> int | None:
        """Run a line of bash, or a program with its arguments; its exit code.

        None where it took longer than `limit_s`, or where `watch`, which is called every moment,
        returned False: then, as after an error or interrupt here, the group gets SIGINT, for which
        a run keeps its best, and `patience_s` later SIGKILL.
        """
        words = ["bash", "-c", command] if isinstance(command, str) else list(command)
        log.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + limit_s
        with log.open("ab" if append else "wb") as out:
            process = subprocess.Popen(
                words,
                cwd=self._place,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.add(process)
        if self._ended:  # while it was started
            self._stop(process)
        try:
            while True:
                left_s = min(until - time.monotonic(), math.inf if watch is None else _LOOK_S)
                try:
                    return process.wait(None if left_s == math.inf else max(0.0, left_s))
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= until or (watch is not None and not watch()):
                        return None
        finally:
            self._running.discard(process)
            _end_group(process, patience_s)

    def end(self) -> None:
        """Stop everything, what is being started too."""
        self._ended = True
        for process in list(self._running):
            self._stop(process)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):  # it is over
            os.killpg(process.pid, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask the group to end, then kill it; at once where this is interrupted."""
    try:
        if process.poll() is None and patience_s:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:
        with suppress(ProcessLookupError):  # children that it has left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
