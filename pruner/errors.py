"""The errors a user may see.

Every error here is one line that says what was wrong, what was found and how to fix it. The
command line prints that line and exits with code 2; anything else that escapes is a bug and keeps
its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PrunerError(Exception):
    """A mistake in the input or the setting, told in one line; never a bug of ours."""


class DataError(PrunerError):
    """A file or folder does not hold what it should: missing, damaged or empty."""


class UnsupportedProgram(PrunerError):
    """A program whose meaning we cannot compute; it is quarantined, never guessed.

    `reason` is a short stable code (for example ``"unknown-operator"``) by which reports count;
    the message may add what was found.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["UnsupportedProgram"], tuple[str, str]]:
        """Pickle by constructor arguments, so that worker processes can hand it back."""
        return type(self), (self.reason, self.detail)


class UnknownStep(UnsupportedProgram):
    """A schedule step whose tag or fields are not in the vocabulary."""


class ReplayFailed(UnsupportedProgram):
    """A program on which the engine failed in a way that nobody foresaw.

    Where many programs were replayed at once, it may be the fault of one of them.
    """

    def __init__(self, reason: str = "replay-error", detail: str = "") -> None:
        super().__init__(reason, detail)

    @staticmethod
    def of(error: Exception) -> "ReplayFailed":
        """The same error under its stable reason."""
        return ReplayFailed(detail=f"{type(error).__name__}: {error}")


@contextmanager
def unforeseen_refused() -> Iterator[None]:
    """Raise what nobody foresaw inside as :class:`ReplayFailed`; errors of ours stay as they are.

    Memory that runs out is no fault of the program, and passes.
    """
    try:
        yield
    except (PrunerError, MemoryError):
        raise
    except Exception as error:
        raise ReplayFailed.of(error) from error


class MissingExtra(PrunerError):
    """An optional library is not installed; the message names the command that installs it."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; run: pip install 'pruner[{extra}]'")
        self.library = library
        self.extra = extra

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str]]:
        """Pickle by constructor arguments."""
        return type(self), (self.library, self.extra)
