"""A job that ends at one of its writes: killed there, or from there on the disk is full.

The job happens in a process of its own, which Python's audit hook follows: whatever it opens to
write, names, removes or syncs in its folder is one event. A file that is opened at the fault is
there and, if it is written anew, empty: the worst that a kill or a full disk can leave of it.
"""

import errno
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

DIED, FULL = 9, 28  # how its process ends
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (  # some hundred starts need not import TVM and torch each
    "pruner.tune.measure.preload_tvm",
    "pruner.tune.run.database",
    "pruner.models.analyzer.analyzer",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NAMED = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.truncate": 0}


class Fault:
    """Counts what the process does to its folder; acts at event number `at`."""

    def __init__(self, folder: Path, at: int | None, kind: str) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.events: list[str] = []
        self.resting = False

    def __call__(self, event: str, given: tuple) -> None:
        if event == "open":
            path, _, flags = given
            if isinstance(flags, int) and flags & WRITES:
                self.happens(f"open {Path(str(path)).name}", path, flags)
        elif event in NAMED:
            path = given[NAMED[event]]
            self.happens(f"{event} {Path(str(path)).name}", path)

    def happens(self, what: str, path: object, flags: int = 0) -> None:
        """One event; those outside the folder do not count. `flags`: of a file that is opened."""
        if self.resting or not str(path).startswith(self.folder):
            return
        self.events.append(what)
        if self.at is None or len(self.events) < self.at:
            return
        if flags & (os.O_CREAT | os.O_TRUNC):
            with self.at_rest():
                os.close(os.open(str(path), flags))
        if self.kind == "killed":
            os._exit(DIED)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    @property
    def comes_now(self) -> bool:
        return len(self.events) + 1 == self.at

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        self.resting = True
        try:
            yield
        finally:
            self.resting = False


Job = Callable[[Path, Fault], None]


def faulty(job: Job, folder: Path, at: int | None, kind: str, out: Path) -> None:
    """The process: one start of the job; `out` gets the events of one that is not killed."""
    folder.mkdir(exist_ok=True)
    fault, fsync = Fault(folder, at, kind), os.fsync

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        fault.happens("fsync folder" if path.is_dir() else f"fsync {path.name}", path)
        fsync(descriptor)

    os.fsync = synced
    sys.addaudithook(fault)
    ending = 0
    try:
        job(folder, fault)
    except OSError:
        ending = FULL
    fault.resting = True
    sys.stdout.flush()
    out.write_text("\n".join(fault.events))
    os._exit(ending)


def started(job: Job, folder: Path, at: int | None, kind: str, out: Path) -> int:
    process = CONTEXT.Process(target=faulty, args=(job, folder, at, kind, out))
    process.start()
    process.join(600)
    assert process.exitcode is not None
    return process.exitcode


@contextmanager
def forked_from(modules: Sequence[str]) -> Iterator[None]:
    """Have processes meanwhile fork from one of ours that has these modules, and end that.

    Workers that measure have limits of memory: theirs is none that has torch, nor ours theirs.
    """
    server = forkserver._forkserver
    server._stop()
    server.set_forkserver_preload(list(modules))
    try:
        yield
    finally:
        server._stop()
        server.set_forkserver_preload(["__main__"])  # as it was


def spread(events: Sequence[int], number: int) -> list[int]:
    number = min(number, len(events))
    return [events[place * len(events) // number] for place in range(number)]
