"""A campaign in one folder: run what is missing of its stages, or say what there is to do."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pruner.files import held
from pruner.places import sources_folder
from pruner.progress import Tell
from pruner.study.device.options import CampaignOptions
from pruner.study.device.stages import GUESSES, boxes, left_out
from pruner.study.device.state import State
from pruner.study.steps.boxes import Box, BoxRunner, Clock, Run, plan
from pruner.study.steps.command import Ended, run_command, started
from pruner.study.steps.runs import put_aside
from pruner.study.steps.step import Step
from pruner.study.steps.times import Times

TIMES_FILE = "seconds.json"
# Seconds of a command outside of its own budget: imports, processes, kernels as libraries.
AROUND_S = 20.0
Write = Callable[[CampaignOptions], Any]


class Campaign:
    """All stages of a device, each started again until it is done.

    ``write`` is called after every stage, with what is there so far; ``environment`` is added to
    that of every command; ``run`` and ``clock`` are for tests.
    """

    def __init__(
        self,
        options: CampaignOptions,
        *,
        tell: Tell,
        write: Write,
        environment: Mapping[str, str] | None = None,
        run: Run | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._options, self._tell, self._write, self._clock = options, tell, write, clock
        self._environment = environment or {}
        self._run = self._command if run is None else run
        self._state = State(options.out, options.device)
        # what a machine without the device needed says nothing of the one that has it
        self.times = Times(options.outputs / TIMES_FILE, GUESSES)

    @property
    def boxes(self) -> list[Box]:
        """The stages."""
        return boxes(self._options)

    def tell_left_out(self) -> None:
        """Say which stages have nothing to do, and what they lack."""
        for line in left_out(self._options):
            self._tell(line)

    def plan(self) -> list[dict[str, Any]]:
        """What there is to do, a row a step, with its minutes and those of its stage."""
        limits = {box.name: box.seconds / 60 for box in self.boxes}
        return [{**row, "of": limits[row["box"]]} for row in plan(self.boxes, self.times)]

    def run_all(self, asked: Mapping[str, Any]) -> None:
        """Run what is missing within the minutes; ``asked``: the options, to be kept.

        Raises:
            PrunerError: another process works in the folder.
        """
        self._options.out.mkdir(parents=True, exist_ok=True)
        with held(self._options.out):
            self._state.begin(asked)
            self.tell_left_out()
            BoxRunner(
                run=self._noted,
                times=self.times,
                tell=self._tell,
                clock=self._clock,
                after=lambda _: self._write_so_far(),
            ).run_all(self.boxes)

    def _write_so_far(self) -> None:
        """What is there after a stage. The minutes of a device cannot be had again, tables can be
        made later: whatever goes wrong with them is told and ends nothing."""
        try:
            self._write(self._options)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._tell(f"no tables ({what}); they can be made later, by summary=true")

    @property
    def undone(self) -> list[str]:
        """Names of the steps that are not done."""
        return [step.name for box in self.boxes for step in box.steps() if not step.done]

    def _noted(self, step: Step, share_s: float, limit_s: float) -> Ended:
        self._state.note(step.name, "before")
        try:
            return self._run(step, share_s, limit_s)
        finally:
            self._state.note(step.name, "after")

    def _command(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """One command to its end, with a log; what broke before is put aside."""
        put_aside(step)
        out = self._options.out
        log = out / "logs" / f"{step.name.replace(', ', '-')}.log"
        words = started(step.within(max(1.0, share_s - AROUND_S)), out)
        paths = [str(sources_folder()), os.environ.get("PYTHONPATH", "")]
        found = os.pathsep.join(path for path in paths if path)
        return run_command(
            words,
            log,
            place=out,
            limit_s=limit_s,
            environment={**self._environment, "PYTHONPATH": found},
        )
