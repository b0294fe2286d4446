"""A contender's process, seen from outside: asked and answered line by line, with a time limit."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.contenders.protocol import ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A process that follows :mod:`pruner.tune.contenders.protocol`.

    ``name`` is for options and files, ``label`` for people. ``missing``: why it cannot run here,
    known before it is started. ``facts`` stand beside those that it tells itself. ``tunes``: it
    times programs of its own while it gets ready, so nothing else may then be at work.
    """

    name: str
    label: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    tunes: bool = False


class Fallen(PrunerError):
    """A contender cannot go on; the message says why, in one line."""


class ContenderProcess:
    """The living process of a contender; its output goes to a log file."""

    def __init__(self, contender: Contender, log: Path) -> None:
        if contender.missing is not None:
            raise Fallen(contender.missing)
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                contender.command,
                env={**os.environ, **contender.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self._unread = b""

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """One question and its answer. Raises `Fallen`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise Fallen(self._cause_of_death()) from error
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises `Fallen` for an error, an end or silence."""
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                self.close()
                raise Fallen(f"no answer within {timeout_s:g} s")
            read = os.read(pipe, 1 << 16)
            if not read:
                raise Fallen(self._cause_of_death())
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if ERROR in found:
            raise Fallen(str(found[ERROR]))
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its process ended with {code}" + (f": {lines[-1][:300]}" if lines else "")
