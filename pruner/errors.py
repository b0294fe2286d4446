"""Errors of a user in one line: the problem, the value found, the fix."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# of a disk that is full or broken; a write does not name its file
OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class PrunerError(Exception):
    """A mistake in input or settings, in one line; never a bug here."""


def lines_of(error: BaseException) -> list[str]:
    """Return the lines of an error's text, never none."""
    return str(error).strip().splitlines() or [repr(error)]


def check_chosen(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names of an option that are not known (`PrunerError`)."""
    known = list(known)
    if unknown := sorted({*given} - {*known}, key=str):
        raise PrunerError(f"{option}={unknown[0]} is unknown; known: {', '.join(known)}")


class DataError(PrunerError):
    """A file or folder is missing, damaged or empty."""


class UnsupportedProgram(PrunerError):
    """A program whose meaning cannot be computed; quarantined, never guessed.

    `reason` is a short stable code such as ``"unknown-operator"``; `detail` adds what was found.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["UnsupportedProgram"], tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class UnknownStep(UnsupportedProgram):
    """A schedule step whose tag or fields are not in the vocabulary."""


class ReplayFailed(UnsupportedProgram):
    """A program, or one of many replayed together, on which the engine failed unexpectedly."""

    def __init__(self, reason: str = "replay-error", detail: str = "") -> None:
        super().__init__(reason, detail)

    @staticmethod
    def of(error: Exception) -> "ReplayFailed":
        """Wrap an unexpected error under its stable reason."""
        return ReplayFailed(detail=f"{type(error).__name__}: {error}")


@contextmanager
def unforeseen_refused() -> Iterator[None]:
    """Turn exceptions of the body into `ReplayFailed`, but no `MemoryError`."""
    try:
        yield
    except (PrunerError, MemoryError):
        raise
    except Exception as error:
        raise ReplayFailed.of(error) from error


class MissingExtra(PrunerError):
    """An optional library is not installed; the message has the command."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; run: pip install 'pruner[{extra}]'")
        self.library = library
        self.extra = extra

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str]]:
        return type(self), (self.library, self.extra)
