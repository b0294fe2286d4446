"""Persistent worker processes: a crashing candidate kills only its worker.

Workers are forked from one clean server process that has imported TVM (Python's ``forkserver``), so
a worker that crashed, hung or ran out of memory is replaced in milliseconds, not in the seconds
that the import takes. An executor of the standard library is broken for good by one crash and
cannot end one job that hangs.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from pruner.processes import end_with_parent
from pruner.tune.measure.numerics import NoReference
from pruner.tune.measure.sockets import keep_sockets_together

JOBS = "pruner.tune.measure.jobs"
_TVM = "pruner.tune.measure.loaded"  # imports it
_CONTEXT = multiprocessing.get_context("forkserver")
_START_S = 180.0  # a worker that is not there by then does not come
_STARTS = 2  # somebody may end a worker, or the server, while it starts
_POLL_S = 0.2  # how soon the wait for one notices that it is wanted no more

# kinds of failure in which the job had no part
NO_WORKER, NO_DEVICE, NO_REFERENCE = "no_worker", "no_device", "no_reference"
NOT_TRIED = (NO_WORKER, NO_DEVICE, NO_REFERENCE)
TIMEOUT = "timeout"  # it took longer than it may
_KILLED, _CRASH = "killed", "crash"
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
_SERVER_GONE = 255  # the exit code of a worker whose server process was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one job: wall-clock seconds, and bytes of memory a worker may allocate."""

    timeout_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a job returned; ``error`` names the kind of failure, ``message`` tells more.

    Kinds: error, timeout, crash, illegal_access, out_of_memory; no_worker, no_device and
    no_reference (:data:`NOT_TRIED`) where the job never began.
    """

    value: Any = None
    error: str | None = None
    message: str = ""
    seconds: float = 0.0


class Worker:
    """One process that runs jobs one after another; started when first needed."""

    def __init__(self, limits: Limits, environment: dict[str, str], jobs: str = JOBS) -> None:
        self._limits, self._environment, self._jobs = limits, environment, jobs
        self._process: Any = None
        self._pipe: Any = None
        self._log: Any = None
        self._retired = False

    def call(self, job: str, *arguments: Any, timeout_s: float | None = None) -> Reply:
        """Run ``<jobs>.<job>(*arguments)``; every failure is a value. ``timeout_s``: of this job.

        A worker that somebody else ended says nothing of the job, which is tried once more; a
        second time it counts as a crash. One that was ended while it started is started once more;
        a second time the job had no worker, and counts for nothing.
        """
        limit_s = timeout_s or self._limits.timeout_s
        reply = self._call(job, arguments, limit_s)
        if reply.error == _KILLED and not self._retired:
            again = self._call(job, arguments, limit_s)
            reply = replace(again, seconds=reply.seconds + again.seconds)
        if reply.error != _KILLED:
            return reply
        return replace(reply, error=NO_WORKER if self._retired else _CRASH)

    def _call(self, job: str, arguments: tuple[Any, ...], limit_s: float) -> Reply:
        start = time.monotonic()
        if not self._started():
            message = "a worker process could not be started"
            return Reply(error=NO_WORKER, message=message, seconds=time.monotonic() - start)
        try:
            self._pipe.send((job, arguments))
            if not self._pipe.poll(limit_s):
                self.stop()
                message = f"stopped after {limit_s:g} s"
                return Reply(error=TIMEOUT, message=message, seconds=time.monotonic() - start)
            value, error, message = self._pipe.recv()
        except (EOFError, OSError):
            value, (error, message) = None, self._cause_of_death()
        if error is not None:  # its memory, or its GPU context, may be damaged
            self.stop()
        return Reply(value=value, error=error, message=message, seconds=time.monotonic() - start)

    def retire(self) -> None:
        """Do no more jobs; a call of another thread that waits for one returns at once."""
        self._retired, process = True, self._process
        if process is not None:
            with suppress(AttributeError, ProcessLookupError):
                process.kill()

    def stop(self) -> None:
        """Kill the process; the next call starts another."""
        if self._process is not None:
            with suppress(AttributeError, ProcessLookupError):
                self._process.kill()
            self._process.join()
        for opened in (self._pipe, self._log):
            if opened is not None:
                opened.close()
        self._process = self._pipe = self._log = None

    def _started(self) -> bool:
        """Start the process if there is none, and wait for its first sign of life."""
        if self._process is not None:
            return not self._retired
        for _ in range(_STARTS):
            if self._retired:
                break
            try:
                self._start()
                alive = self._answers() and not self._retired
            except (EOFError, OSError):  # it was ended, or the server that starts it
                self.stop()
                continue
            if not alive:
                self.stop()
            return alive
        return False

    def _answers(self) -> bool:
        end = time.monotonic() + _START_S
        while not self._retired and time.monotonic() < end:
            if self._pipe.poll(_POLL_S):
                return bool(self._pipe.recv())
        return False

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._pipe, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(
            target=_serve,
            args=(
                theirs,
                self._jobs,
                self._limits.memory_bytes,
                self._environment,
                _duplicate(self._log),
            ),
            daemon=True,
        )
        with _without_main():
            process.start()
        self._process = process
        theirs.close()

    def _cause_of_death(self) -> tuple[str, str]:
        self._process.join()
        code = self._process.exitcode or 0
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        tail = self._log.read().decode(errors="replace").strip()
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        message = f"{name}: {tail[-300:]}" if tail else name
        if -code in (signal.SIGSEGV, signal.SIGBUS):
            return "illegal_access", message
        if -code in _FROM_OUTSIDE or code == _SERVER_GONE:
            return _KILLED, message
        return ("out_of_memory" if _is_memory(tail) else _CRASH), message


class Pool:
    """Several workers that take jobs from one queue; `jobs` is the module of their functions.

    ``places``: further environment of each in turn, such as the device that it may see.
    """

    def __init__(
        self,
        size: int,
        limits: Limits,
        environment: dict[str, str],
        jobs: str = JOBS,
        *,
        places: Sequence[Mapping[str, str]] = ({},),
    ) -> None:
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        each = [{**environment, **places[number % len(places)]} for number in range(size)]
        self._workers = [Worker(limits, one, jobs) for one in each]
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(size)

    def submit(self, job: str, *arguments: Any, timeout_s: float | None = None) -> Future[Reply]:
        """Queue a job; the future holds a `Reply`, never an exception. ``timeout_s``: of this one,
        instead of that of all."""
        return self._threads.submit(self._run, job, arguments, timeout_s)

    def warm_up(self, *, wait: bool = True) -> None:
        """Start every worker now, so that no measurement waits for an import."""
        started = [self.submit("ready") for _ in self._workers]
        for future in started if wait else []:
            future.result()

    def close(self) -> None:
        """End all workers now; jobs that wait are cancelled, what is at work is lost."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.retire()
        self._threads.shutdown()
        for worker in self._workers:
            worker.stop()

    def _run(self, job: str, arguments: tuple[Any, ...], timeout_s: float | None) -> Reply:
        worker = self._idle.get()
        try:
            return worker.call(job, *arguments, timeout_s=timeout_s)
        finally:
            self._idle.put(worker)


def start_server(jobs: str = JOBS) -> None:
    """Have the server process import what `jobs` need, TVM too, once and for all workers."""
    keep_sockets_together()
    _CONTEXT.set_forkserver_preload([_TVM, jobs])


_STARTING = threading.Lock()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new worker from running the main script again, which may import for seconds."""
    with _STARTING:
        main = sys.modules.pop("__main__")
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _duplicate(file: Any) -> Any:
    """A file descriptor that survives the journey to another process."""
    from multiprocessing.reduction import DupFd

    return DupFd(file.fileno())


def _serve(
    pipe: Connection, module: str, memory_bytes: int, environment: dict[str, str], log: Any
) -> None:
    """The worker's life: jobs in, results out, until the parent is gone."""
    end_with_parent()  # the server, even in a loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends its workers
    os.environ.update(environment)
    tempfile.tempdir = None  # the server's; ours is asked for anew
    descriptor = log.detach()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    jobs = importlib.import_module(module)
    jobs.ready()
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send(True)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        os.ftruncate(descriptor, 0)
        try:
            pipe.send((getattr(jobs, name)(*arguments), None, ""))
        except BaseException as error:  # whatever a compiler or a program raises is a result
            pipe.send((None, *_kind(error)))
        sys.stderr.flush()


def _kind(error: BaseException) -> tuple[str, str]:
    text = f"{type(error).__name__}: {error}"
    if type(error) is ConnectionError:  # as our jobs raise it, not a broken pipe of a tool
        return NO_DEVICE, text[-500:]
    if type(error) is NoReference:
        return NO_REFERENCE, text[-500:]
    if isinstance(error, MemoryError) or _is_memory(text):
        return "out_of_memory", text[-500:]
    if "ILLEGAL_ADDRESS" in text or "illegal memory access" in text:
        return "illegal_access", text[-500:]
    return "error", text[-500:]


def _is_memory(text: str) -> bool:
    return any(word in text for word in ("bad_alloc", "ut of memory", "OUT_OF_MEMORY"))
