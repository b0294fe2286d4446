"""A job in a process of its own: its output is a log file, its mistakes come back as one line.

What is imported, built or loaded there may print, take gigabytes and crash: that ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.processes import end_with_parent

_MISTAKE = 2  # exit code: the last line of the log is for the user


def run_child(module: str, argument: Path, log: Path) -> None:
    """Run ``python -m MODULE ARGUMENT`` to its end.

    Raises:
        PrunerError: what it wrote last, where it ended within :func:`told_in_one_line`, else its
            exit code; and where the log is.
    """
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, "-m", module, str(argument)],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        what = lines[-1] if lines and done.returncode == _MISTAKE else f"exit {done.returncode}"
        raise PrunerError(f"{what}; {log} has the whole output")


def ask_child(module: str, request: Mapping[str, Any], log: Path) -> None:
    """:func:`run_child` on a JSON file of `request`, which lies beside the log while it runs.

    Raises:
        PrunerError: see there.
    """
    with request_file(request, log) as asked:
        run_child(module, asked, log)


@contextmanager
def request_file(request: Mapping[str, Any], log: Path) -> Iterator[Path]:
    """A JSON file of `request` beside the log, as long as it is asked for."""
    log.parent.mkdir(parents=True, exist_ok=True)
    asked = log.with_suffix(".request.json")
    write_json(asked, request, indent=1)
    try:
        yield asked
    finally:
        asked.unlink()


class Child:
    """A process that does one job after another for us: ``python -m MODULE`` that calls `serve`.

    It starts at once, so that what it imports is there when the first job comes. Its answers have a
    pipe of their own: whatever is printed there is no answer. A context manager: its end is the
    child's.
    """

    def __init__(self, module: str) -> None:
        self._start_log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        ours, theirs = os.pipe()
        self._answers = os.fdopen(ours, encoding="utf-8")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self._start_log,
                stderr=self._start_log,
                pass_fds=[theirs],
                text=True,
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Self:
        """Nothing: it runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        ends: list[IO[Any]] = [_open(self._process.stdin), self._answers, self._start_log]
        for opened in ends:
            with suppress(BrokenPipeError):
                opened.close()

    def ask(self, job: str, argument: Path, log: Path) -> None:
        """Have a job done; what is printed meanwhile is in `log`, and what was printed before the
        first job of a child that did not come to it.

        Raises:
            PrunerError: as :func:`run_child` does.
        """
        log.write_bytes(b"")
        answer = ""
        with suppress(BrokenPipeError):  # it has ended: told below
            stdin = _open(self._process.stdin)
            stdin.write(json.dumps([job, str(argument.resolve()), str(log.resolve())]) + "\n")
            stdin.flush()
            answer = self._answers.readline()
        error = json.loads(answer) if answer else f"exit {self._process.wait()}"
        if not answer and not log.stat().st_size:
            self._start_log.seek(0)
            log.write_bytes(self._start_log.read())
        if error is not None:
            raise PrunerError(f"{error}; {log} has the whole output")


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def serve(jobs: Mapping[str, Callable[[Path], object]]) -> None:
    """In the child: do jobs, by name, until the parent is gone; a `PrunerError` is an answer."""
    end_with_parent()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # the end of this process is the end of its answers
    answers = os.fdopen(descriptor, "w", encoding="utf-8")
    for line in sys.stdin:
        job, argument, log = json.loads(line)
        with Path(log).open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        error = None
        try:
            jobs[job](Path(argument))
        except PrunerError as refused:
            error = str(refused)
        answers.write(json.dumps(error) + "\n")
        answers.flush()


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """In the child: a `PrunerError` inside is its last line, and it does not outlive its parent."""
    end_with_parent()
    try:
        yield
    except PrunerError as error:
        sys.stderr.write(f"\n{error}\n")
        sys.exit(_MISTAKE)
