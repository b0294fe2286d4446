"""Run the steps of a long comparison, then make its tables."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from pruner.cli.shared.output import as_table, say
from pruner.files import METRICS_FILE
from pruner.progress import Log
from pruner.study.grid import (
    Box,
    BoxRunner,
    Clock,
    Ended,
    Step,
    Times,
    plan,
    quoted,
    run_step,
    taken_up,
)

SECONDS_FILE = "seconds.json"


@dataclass(kw_only=True)
class ComparisonOptions:
    """``plan``: list the work; ``summary``: only make the tables.

    Cells go to ``out``, tables to ``results``.
    """

    plan: bool = False
    summary: bool = False
    out: str = MISSING
    results: str = MISSING

    @property
    def folder(self) -> Path:
        """Folder of the tables."""
        return Path(self.results).resolve()

    @property
    def runs(self) -> Path:
        """Folder of the cells."""
        return Path(self.out).resolve()


class Comparison:
    """Run steps in order; cells go to the folder `runs`.

    Commands run in `root`, the repository. ``guesses``: seconds of kinds of steps that have not
    been run; ``seconds``: then it ends. A subclass has ``steps``, or ``boxes`` where several share
    the seconds. ``environment`` is added to that of every command. Times are stored in `times`, by
    default in ``seconds.json`` of `runs`.
    """

    def __init__(
        self,
        runs: Path,
        root: Path,
        guesses: Mapping[str, float],
        *,
        seconds: float = float("inf"),
        times: Path | None = None,
        environment: Mapping[str, str] | None = None,
        log: Log = say,
        clock: Clock = time.monotonic,
    ) -> None:
        self.runs, self.root, self.seconds, self.log = runs, root, seconds, log
        self.times = Times(times or runs / SECONDS_FILE, guesses)
        self._environment, self._clock = environment, clock

    def steps(self) -> Iterator[Step]:
        """All steps, each after the steps that it needs."""
        raise NotImplementedError

    @property
    def boxes(self) -> list[Box]:
        """The time slots: by default a single slot of all steps."""
        return [Box(name=self.runs.name, steps=self.steps, seconds=self.seconds)]

    def tuned(
        self,
        name: str,
        words: Sequence[str],
        *,
        kind: str,
        size: float = 1.0,
        needs: Sequence[Step] = (),
        command: str = "tune",
        resumes: bool = True,
    ) -> Step:
        """A run of ``tune.py`` called `name`.

        `resumes`: its continuation where it was ended.
        """
        leaves = self.runs / command / name / METRICS_FILE
        told = [f"{command}.py", *words, f"outputs={quoted(self.runs)}", f"run_id={name}"]
        step = Step(name=name, words=told, leaves=leaves, kind=kind, size=size, needs=needs)
        return taken_up(step) if resumes else step

    def plan(self) -> list[dict[str, Any]]:
        """The work to do: a row a step, with its minutes."""
        return plan(self.boxes, self.times)

    def show_plan(self) -> dict[str, Any]:
        """Print the work to do with its duration; returns the sums."""
        rows = self.plan()
        self.log(as_table(rows) if rows else "nothing is left to do")
        return {"steps": len(rows), "hours": round(sum(row["minutes"] for row in rows) / 60, 2)}

    def run_all(self) -> None:
        """Run the missing steps."""
        BoxRunner(
            run=self.run, times=self.times, log=self.log, clock=self._clock, after=self.after
        ).run_all(self.boxes)

    def run(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run a step to its end, with a log.

        The folder of a broken earlier start is renamed.
        """
        return run_step(
            step, share_s, limit_s, root=self.root, logs=self.runs / "logs",
            environment=self._environment,
        )  # fmt: skip

    def after(self, box: Box) -> None:
        """Do nothing after a time slot."""


class Tunings(Comparison):
    """Runs of ``tune.py`` one after another.

    `cells` has the words of each run by name.
    """

    def __init__(self, runs: Path, root: Path, cells: Mapping[str, Sequence[str]]) -> None:
        super().__init__(runs, root, {"run": 60.0})
        self._cells = cells

    def steps(self) -> Iterator[Step]:
        """A step a cell."""
        for name, words in self._cells.items():
            yield self.tuned(name, words, kind="run")
