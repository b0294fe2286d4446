"""Run commands as process groups, ended as a whole, with logs and time limits."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

# One thread each: commands side by side share the cores already, and sums keep their order.
ONE_THREAD: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LOOK_S = 0.2  # how soon a wait notices a signal, or that it was cancelled


class Commands:
    """Commands of several threads, each with log and process group; `end` stops all."""

    def __init__(
        self, place: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """``place``: working folder; ``environment``: further variables."""
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
        """Yield results of ``run(job)`` as they end; an interrupt ends all others."""
        with ThreadPoolExecutor(num_workers) as pool:
            try:
                waiting = {pool.submit(run, job) for job in jobs}
                while waiting:
                    # A signal that the system gives to another thread is handled when this thread
                    # wakes, so it never waits until a command is over.
                    ended, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
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
        """Run a line of bash, or a program; return its exit code.

        None after `limit_s`, or once `watch`, called every moment, returned False: then, as after
        an error, the group gets SIGINT, on which a run keeps its best, and `patience_s` later
        SIGKILL.
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
        """Stop all commands, including commands that are being started."""
        self._ended = True
        for process in list(self._running):
            self._stop(process)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):  # it is over
            os.killpg(process.pid, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Interrupt the group, then kill it; at once if interrupted here."""
    try:
        if process.poll() is None and patience_s:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:
        with suppress(ProcessLookupError):  # children that it has left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def nvidia_smi(*words: str) -> list[str] | None:
    """Return the lines of `nvidia-smi`; None without a driver, empty where it fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["nvidia-smi", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode == 0:
            return done.stdout.splitlines()
    return []
