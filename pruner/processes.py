"""Run functions in other processes, none of which outlives this process."""

import ctypes
import importlib
import math
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal, Self

from pruner.errors import OF_DISKS, PrunerError

_PR_SET_PDEATHSIG, _PRIVATE = 1, 0o700
_LONGEST = 75  # bytes of the name of our folder: below it come 32, and a socket's name has 107
_LAST = -200  # of what is put away at the end: Python's own folder in it goes before
_LOOK_S = 0.2  # how soon a wait notices a signal, or that it was cancelled
_ENDED = (
    "a worker process was ended, perhaps for lack of memory (num_workers=1 needs less); the same "
    "command continues"
)


def end_with_parent() -> None:
    """End this process by SIGKILL as soon as its parent ends.

    No signal comes where the parent has ended before: a worker, which would wait for ever, exits
    here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(1)


@dataclass(frozen=True, slots=True)
class Done:
    """The value of a job in a worker, or its error."""

    value: Any = None
    error: PrunerError | None = None

    def get(self) -> Any:
        """Return the value; raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@contextmanager
def in_workers(
    jobs: Sequence[Any],
    run: Callable[[Any], Any],
    number: int,
    *,
    log: Callable[[str], None] = lambda _: None,
    method: Literal["fork", "spawn"] = "fork",
) -> Iterator[Callable[..., Iterator[Done]]]:
    """Run jobs in `number` processes, first come, first served.

    Yields a function that iterates over the jobs as they end, for at most so many seconds; leaving
    the body ends the processes. Forked workers share this process's data; spawned ones cannot hang
    in a lock of a thread, and need picklable jobs. Raises `PrunerError` where torch has several
    threads.
    """
    torch = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.get_num_threads() > 1:
        raise PrunerError(f"{number} processes: several processes need num_threads=1")
    context: Any = multiprocessing.get_context(method)
    taken = context.Value("i", 0)
    processes: dict[Any, Any] = {}

    def ended(timeout_s: float | None = None) -> Iterator[Done]:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        working = dict(processes)
        while working:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            ready: list[Any] = wait(list(working), left_s)
            if not ready:
                return
            for pipe in ready:
                try:
                    done: Done = pipe.recv()
                except EOFError:
                    process = working.pop(pipe)
                    process.join()
                    if not process.exitcode:  # there were no more jobs
                        continue
                    done = Done(error=PrunerError(_ENDED))
                if done.error is not None:
                    log(f"error: {done.error}")
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends its workers
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
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno in OF_DISKS:  # full, for example
                reason = f"{error.filename or 'files'}: {error.strerror or error}"
            else:  # a bug
                traceback.print_exc()
            done = Done(error=PrunerError(reason))
        results.send(done)


# Kinds of failure in which the job had no part.
NO_WORKER, NO_DEVICE, NO_REFERENCE = "no_worker", "no_device", "no_reference"
NOT_TRIED = (NO_WORKER, NO_DEVICE, NO_REFERENCE)
TIMEOUT = "timeout"  # it took longer than it may
KILLED, MEMORY, _ILLEGAL, _CRASH = "killed", "out_of_memory", "illegal_access", "crash"
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
_SERVER_GONE = 255  # the exit code of a worker whose server process was killed
_START_S = 180.0  # a worker that is not there by then does not come
_STARTS = 2  # somebody may end a worker, or the server, while it starts
_STARTING = threading.Lock()
_PRELOADED = dict[str, None]()  # modules of the server


class NoReference(Exception):
    """There is nothing to compare with: no fault of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Result of a job; ``error`` is the kind of failure.

    ``message`` has details. Kinds: error, timeout, crash, illegal_access, out_of_memory; no_worker,
    no_device and no_reference (:data:`NOT_TRIED`) where the job never began. ``mistake``: the whole
    message of a `PrunerError`.
    """

    value: Any = None
    error: str | None = None
    message: str = ""
    mistake: str | None = None
    seconds: float = 0.0

    @property
    def crashed(self) -> bool:
        """True if the job ended its process, or ran out of memory."""
        return self.mistake is None and self.error in (_ILLEGAL, _CRASH, MEMORY)

    @property
    def line(self) -> str:
        """The failure in one line: mistake, or kind and last line."""
        if self.mistake is not None:
            return self.mistake
        first, *rest = self.message.splitlines()
        return f"{first.partition(': ')[0]}: {rest[-1]}" if rest else first


class JobFailed(PrunerError):
    """Raised if a job of :meth:`Worker.ask` failed; ``reply`` has the kind."""

    def __init__(self, line: str, reply: Reply) -> None:
        super().__init__(line)
        self.reply = reply


class Worker:
    """A process that runs jobs; a crash costs only the process.

    ``jobs`` is the module with the functions, and perhaps `ready`, which prepares the process; a
    forked worker takes any object. A worker of the ``forkserver`` is a copy of a clean server
    process that has imported the modules of :func:`preload`, so it is replaced in milliseconds. An
    executor of the standard library is broken for good by one crash and cannot end one job that
    hangs.
    ``spawn`` starts a fresh interpreter and sets the ``environment`` before it imports ``jobs``.
    """

    def __init__(
        self,
        jobs: Any,
        *,
        timeout_s: float = math.inf,
        memory_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
        method: Literal["forkserver", "spawn", "fork"] = "forkserver",
        starts_processes: bool = False,
    ) -> None:
        """Take the wall-clock limit of a job and its memory limit.

        ``starts_processes``: jobs start processes of their own; a worker of ``spawn`` always may.
        """
        self._jobs, self._timeout_s, self._method = jobs, timeout_s, method
        # a contender's library may start processes, which a daemon may not
        self._is_daemon = not starts_processes and method != "spawn"
        self._given = (memory_bytes, dict(environment or {}))
        self._process: Any = None
        self._pipe: Any = None
        self._log: Any = None
        self._ready = self._retired = False
        self._sent = 0.0  # the moment from which the time of the job counts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, job: str, *arguments: Any, timeout_s: float | None = None) -> Reply:
        """Run ``<jobs>.<job>(*arguments)``; every failure is a value.

        ``timeout_s``: limit of this job. A kill of the worker from outside is no result of the
        job, which is tried once more; a second time it counts as a crash. A worker that was killed
        while it started is started once more; a second time the job had no worker, and counts for
        nothing.
        """
        reply = self._call(job, arguments, timeout_s)
        if reply.error == KILLED and not self._retired:
            again = self._call(job, arguments, timeout_s)
            reply = replace(again, seconds=reply.seconds + again.seconds)
        if reply.error != KILLED:
            return reply
        return replace(reply, error=NO_WORKER if self._retired else _CRASH)

    def _call(self, job: str, arguments: tuple[Any, ...], timeout_s: float | None) -> Reply:
        start = time.monotonic()
        if not self._started():
            reply = Reply(error=NO_WORKER, message="a worker process could not be started")
        else:
            with suppress(OSError):  # it has ended: seen by `receive`
                self.send(job, *arguments)
            reply = self.receive(timeout_s)
        return replace(reply, seconds=time.monotonic() - start)

    def ask(self, job: str, *arguments: Any, log_file: Path, timeout_s: float | None = None) -> Any:
        """Return the value of a job; raise `JobFailed` for an error.

        All output goes to `log_file`.
        """
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.write_bytes(b"")
        if self._process is None:
            self.start()
        with suppress(OSError):  # it has ended: seen by `receive`
            self.send(job, *arguments, log_file=log_file)
        reply = self.receive(timeout_s)
        if reply.error is not None:
            raise JobFailed(f"{reply.line}; {log_file} has the whole output", reply)
        return reply.value

    def send(self, job: str, *arguments: Any, log_file: Path | None = None) -> None:
        """Start the process if needed, and a job; raise `OSError` if it ended."""
        if self._process is None:
            self.start()
        self._sent, self._log_path = time.monotonic(), log_file
        self._pipe.send((job, arguments, None if log_file is None else str(log_file.resolve())))

    def receive(self, timeout_s: float | None = None) -> Reply:
        """Receive a sent job's reply; time counts from sending, or readiness."""
        limit_s = timeout_s or self._timeout_s
        try:
            if not self._answers():
                self.stop()
                return Reply(error=NO_WORKER, message="a worker process could not be started")
            left_s = None if limit_s == math.inf else self._sent + limit_s - time.monotonic()
            if not self._pipe.poll(None if left_s is None else max(0.0, left_s)):
                self.stop()
                reply = Reply(error=TIMEOUT, message=f"stopped after {limit_s:g} s")
            else:
                value, error, message, mistake = self._pipe.recv()
                reply = Reply(value=value, error=error, message=message, mistake=mistake)
        except (EOFError, OSError):
            reply = self._cause_of_death()
        if reply.error is not None and reply.mistake is None:
            self.stop()  # its memory, or its GPU context, may be damaged
        return replace(reply, seconds=time.monotonic() - self._sent)

    def retire(self) -> None:
        """Run no more jobs; waiting calls return at once."""
        self._retired, process = True, self._process
        if process is not None:
            with suppress(AttributeError, ProcessLookupError):
                process.kill()

    def stop(self) -> None:
        """Kill the process; the next job starts another."""
        if self._process is not None and self._process.pid is not None:  # its start succeeded
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.join()
        for opened in (self._pipe, self._log):
            if opened is not None:
                opened.close()
        self._process = self._pipe = self._log = None

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        self._log, self._log_path, self._ready = tempfile.TemporaryFile(), None, False  # noqa: SIM115
        context: Any = multiprocessing.get_context(self._method)
        self._pipe, theirs = context.Pipe()
        log_file = f"/proc/{os.getpid()}/fd/{self._log.fileno()}"
        self._process = context.Process(
            target=_serve, args=(theirs, self._jobs, *self._given, log_file)
        )
        self._process.daemon = self._is_daemon
        with _without_main(), _interrupts_later():
            self._process.start()
        theirs.close()

    def _started(self) -> bool:
        if self._process is not None:
            return not self._retired
        for _ in range(_STARTS):
            if self._retired:
                break
            try:
                self.start()
                alive = self._answers() and not self._retired
            except (EOFError, OSError):  # it was ended, or the server that starts it
                self.stop()
                continue
            if not alive:
                self.stop()
            return alive
        return False

    def _answers(self) -> bool:
        until = time.monotonic() + (_START_S if self._method == "forkserver" else math.inf)
        while not (self._ready or self._retired) and time.monotonic() < until:
            if self._pipe.poll(_LOOK_S):
                self._sent = max(self._sent, self._pipe.recv())
                self._ready = True
        return self._ready

    def _cause_of_death(self) -> Reply:
        self._process.join()
        code = self._process.exitcode or 0
        tail = self._output()[-2000:].decode(errors="replace").strip()
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        message = f"{name}: {tail[-300:]}" if tail else name
        error = MEMORY if is_memory(tail) else _CRASH
        if -code in (signal.SIGSEGV, signal.SIGBUS):
            error = _ILLEGAL
        elif -code in _FROM_OUTSIDE or code == _SERVER_GONE:
            error = KILLED
        return Reply(error=error, message=message)

    def _output(self) -> bytes:
        self._log.seek(0)
        own: bytes = self._log.read()
        if self._log_path is None:
            return own
        if not self._log_path.stat().st_size:  # it has not come to the job
            self._log_path.write_bytes(own)
        return self._log_path.read_bytes()


def ask(jobs: str, job: str, *arguments: Any, worker: Worker | None = None, **options: Any) -> Any:
    """Run a job as :meth:`Worker.ask`, by default in a fresh interpreter."""
    with nullcontext(worker) if worker else Worker(jobs, method="spawn") as asked:
        return asked.ask(job, *arguments, **options)


class WorkerPool:
    """Several workers that take jobs from one queue, in ``environments`` in turn."""

    def __init__(
        self,
        size: int,
        jobs: Any,
        *,
        environment: Mapping[str, str] | None = None,
        environments: Sequence[Mapping[str, str]] = ({},),
        **options: Any,
    ) -> None:
        """``options``: see :class:`Worker`."""
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        each = [{**(environment or {}), **environments[n % len(environments)]} for n in range(size)]
        self._workers = [Worker(jobs, environment=one, **options) for one in each]
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(size)

    def submit(self, job: str, *arguments: Any, timeout_s: float | None = None) -> Future[Reply]:
        """Queue a job with its own time limit; the future holds a `Reply`."""
        return self._threads.submit(self._run, job, arguments, timeout_s)

    def warm_up(self, *, wait: bool = True) -> None:
        """Start every worker now, so that no measurement waits for an import."""
        started = [self.submit("ready") for _ in self._workers]
        for future in started if wait else []:
            future.result()

    def close(self) -> None:
        """End all workers now; waiting jobs are cancelled, running jobs lost."""
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


def preload(*modules: str) -> None:
    """Import modules in the workers' server, before its start; several calls add up."""
    keep_sockets_together()
    _PRELOADED.update(dict.fromkeys(modules))
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_PRELOADED))


@cache
def keep_sockets_together() -> None:
    """Put workers' sockets into an own folder; remove stale folders.

    Folders ``pymp-*`` of killed processes have no owner on record. Where ours cannot be made, or
    its name is too long, sockets lie where Python puts them.
    """
    base = Path(tempfile.gettempdir()) / f"pruner-{os.getuid()}-{socket.gethostname()[:16]}"
    own = base / str(os.getpid())
    if len(os.fsencode(own)) > _LONGEST:
        return
    with suppress(OSError):
        base.mkdir(mode=_PRIVATE, exist_ok=True)
        if base.is_symlink() or base.stat().st_uid != os.getuid():
            return
        for left in base.iterdir():
            if left.name.isdigit() and not Path(f"/proc/{left.name}").exists():
                shutil.rmtree(left, ignore_errors=True)
        own.mkdir(exist_ok=True)
        util.Finalize(None, _clear, args=(own,), exitpriority=_LAST)
        before, tempfile.tempdir = tempfile.tempdir, str(own)
        try:
            util.get_temp_dir()  # which caches the folder
        finally:
            tempfile.tempdir = before


def _clear(own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    with suppress(OSError):  # others work
        own.parent.rmdir()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new worker from running the main script, possibly slow."""
    with _STARTING:
        main = sys.modules.pop("__main__")
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay SIGINT until after the body.

    A server ignores SIGINT only once it has imported its modules, which takes seconds; until then
    it keeps the mask of the thread that starts it.
    """
    resource_tracker.ensure_running()  # its start, else a part of the server's, unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    pipe: Any, jobs: Any, memory_bytes: int | None, environment: Mapping[str, str], own_log: str
) -> None:
    _let_helpers_end()
    end_with_parent()  # the server, even in a loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(environment)
    tempfile.tempdir = None  # the server's folder; ours is looked up anew
    own = os.open(own_log, os.O_WRONLY | os.O_APPEND)
    _write_to(own)
    if isinstance(jobs, str):
        jobs = importlib.import_module(jobs)
    getattr(jobs, "ready", bool)()
    _flush()
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send(time.monotonic())  # a clock of the whole system
    while True:
        try:
            name, arguments, log_file = pipe.recv()
        except EOFError:
            return
        os.ftruncate(own, 0)
        with open(
            own if log_file is None else log_file, "ab", closefd=log_file is not None
        ) as output:
            _write_to(output.fileno())
        try:
            reply = ForkingPickler.dumps((getattr(jobs, name)(*arguments), None, "", None))
        except BaseException as error:  # whatever a compiler or a program raises is a result
            mistake = str(error) if isinstance(error, PrunerError) else None
            if log_file is not None:
                caused = mistake is None or error.__cause__ is not None
                sys.stderr.write(f"{traceback.format_exc().strip() if caused else mistake}\n")
            reply = ForkingPickler.dumps((None, *_kind(error), mistake))
        _flush()
        pipe.send_bytes(reply)


def _let_helpers_end() -> None:
    """Close the pipes to helper processes, so that they end with the run."""
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker
    for helper, pipe in ((server, "_forkserver_alive_fd"), (tracker, "_fd")):
        descriptor = getattr(helper, pipe)
        if descriptor is not None:
            os.close(descriptor)
            setattr(helper, pipe, None)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _write_to(descriptor: int) -> None:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _kind(error: BaseException) -> tuple[str, str]:
    text, kind = f"{type(error).__name__}: {error}", "error"
    if type(error) is ConnectionError:  # as our jobs raise it, not a broken pipe of a tool
        kind = NO_DEVICE
    elif type(error) is NoReference:
        kind = NO_REFERENCE
    elif is_memory(text):
        kind = MEMORY
    elif "ILLEGAL_ADDRESS" in text or "illegal memory access" in text:
        kind = _ILLEGAL
    return kind, text[-500:]


def is_memory(text: str) -> bool:
    """Whether the text of an error names a lack of memory."""
    return any(w in text for w in ("MemoryError", "bad_alloc", "ut of memory", "OUT_OF_MEMORY"))
