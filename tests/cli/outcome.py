"""How a command ended."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Exit code, last line of stdout as JSON, stderr."""

    code: int
    result: dict | None
    err: str

    @property
    def done(self):
        """JSON and stderr of a command that succeeded."""
        assert self.code == 0, self.err
        return self.result, self.err

    @property
    def refusal(self):
        """Stderr of a command that was refused: code 2 and one line of error, no traceback."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert (self.code, len(errors), "Traceback" in self.err) == (2, 1, False), self.err
        return self.err
