"""Comparisons of ``experiments/`` that take hours: steps that are run once, then the tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from pruner.cli.shared.output import as_table, say
from pruner.study.steps.boxes import Box, BoxRunner, plan
from pruner.study.steps.command import Ended, run_command, started
from pruner.study.steps.runs import put_aside
from pruner.study.steps.step import Step
from pruner.study.steps.times import Times

SECONDS_FILE = "seconds.json"


@dataclass(kw_only=True)
class ComparisonOptions:
    """``plan``: say what there is to do; ``summary``: only make the tables.

    Cells go to ``out``, tables to ``results``.
    """

    plan: bool = False
    summary: bool = False
    out: str = MISSING
    results: str = MISSING

    @property
    def folder(self) -> Path:
        """Where tables go."""
        return Path(self.results).resolve()

    @property
    def runs(self) -> Path:
        """Where cells go."""
        return Path(self.out).resolve()


class Comparison(ABC):
    """Steps in order, cells in the folder `runs`, commands in `root`, the repository.

    ``guesses``: seconds of kinds of steps that have not been run; ``seconds``: then it ends.
    """

    def __init__(
        self,
        runs: Path,
        root: Path,
        guesses: Mapping[str, float],
        *,
        seconds: float = float("inf"),
    ) -> None:
        self.runs, self.root = runs, root
        self.seconds = seconds
        self.times = Times(runs / SECONDS_FILE, guesses)

    @abstractmethod
    def steps(self) -> Iterator[Step]:
        """All steps, each after those that it needs."""

    def show_plan(self) -> dict[str, Any]:
        """Say what there is to do and how long it takes; returns the sums."""
        rows = plan([self._box()], self.times)
        say(as_table(rows) if rows else "nothing is left to do")
        return {"steps": len(rows), "hours": round(sum(row["minutes"] for row in rows) / 60, 2)}

    def run_all(self) -> None:
        """Run what is missing."""
        BoxRunner(run=self.run, times=self.times, tell=say).run_all([self._box()])

    def run(self, step: Step, _share_s: float, limit_s: float) -> Ended:
        """Run a step to its end, with a log; what broke before is put aside."""
        put_aside(step)
        log = self.runs / "logs" / f"{step.name}.log"
        return run_command(started(step.words, self.root), log, place=self.root, limit_s=limit_s)

    def _box(self) -> Box:
        return Box(name=self.runs.name, steps=self.steps, seconds=self.seconds)
