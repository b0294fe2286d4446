"""How long steps took, on this machine: what others of their kind may take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pruner.files import read_json, write_json
from pruner.study.steps.step import Step


class Times:
    """A file of seconds that steps took; ``guesses``: seconds of a kind and size 1 before any did.

    `path` is a JSON list, one object a step: name, kind, size, seconds.
    """

    def __init__(self, path: Path, guesses: Mapping[str, float]) -> None:
        self._path = path
        self._guesses = guesses

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All that were kept, in their order."""
        if not self._path.is_file():
            return []
        return read_json(self._path, list)

    def keep(self, step: Step, seconds: float) -> None:
        """Add what a step took, for as much of it as it did."""
        row = {"name": step.name, "kind": step.kind, "size": step.reached, "seconds": seconds}
        write_json(self._path, [*self.rows, row], indent=1)

    def last_s(self, step: Step) -> float | None:
        """What this very step took the last time; None where it never ended."""
        took: list[float] = [row["seconds"] for row in self.rows if row["name"] == step.name]
        return took[-1] if took else None

    def expected_s(self, step: Step) -> float:
        """What a step may take: as the steps of its kind did for their size, else the guess."""
        known = [(row["seconds"], row["size"]) for row in self.rows if row["kind"] == step.kind]
        if known:
            return step.size * sum(s for s, _ in known) / sum(size for _, size in known)
        return step.size * self._guesses[step.kind]
