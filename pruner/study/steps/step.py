"""A step: one command of this project, the file that it leaves, the steps that it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pruner.files import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command: done once ``leaves``, a JSON object, is there; begun once all it needs is done.

    ``words``: see `pruner.study.steps.command.started`. ``kind`` and ``size`` say what it may
    take (`pruner.study.steps.times`). ``budget``: the option that takes the seconds it may use,
    for commands that can end in time and keep what they have; "": none. ``spent_s`` of them an
    earlier start has used. ``made``: the file that the command writes, where another step's does
    the same; it is copied to ``leaves``.
    """

    name: str
    words: Sequence[str]
    leaves: Path
    kind: str
    size: float = 1.0
    needs: Sequence["Step"] = ()
    budget: str = ""
    spent_s: float = 0.0
    made: Path | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended well; an interrupted run leaves its numbers too, and says so."""
        if not self.leaves.is_file():
            return False
        return not read_json(self.leaves, dict).get("interrupted", False)

    @property
    def lacks(self) -> list[str]:
        """Names of what it needs and is not done."""
        return [step.name for step in self.needs if not step.done]

    @property
    def reached(self) -> float:
        """How much of its size it did: of a run that its seconds ended as many trials as it made.

        Taken for the whole, such runs would make all of their kind look quicker than they are.
        """
        if not (self.budget and self.leaves.is_file()):
            return self.size
        trials = read_json(self.leaves, dict).get("trials") or self.size
        return float(min(self.size, trials))

    def within(self, seconds: float) -> list[str]:
        """Its words, with `seconds` more as its budget where it takes one and they are limited."""
        if not self.budget or seconds == float("inf"):
            return list(self.words)
        return [*self.words, f"{self.budget}={max(1, int(self.spent_s + seconds))}"]

    def keep(self) -> None:
        """Copy what its command made to where this step leaves it; call it once that ended well."""
        if self.made is not None:
            self.leaves.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.leaves, read_json(self.made), indent=1)
