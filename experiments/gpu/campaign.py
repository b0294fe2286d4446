"""Run or list the missing stages of a campaign in one folder."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from experiments.common.comparison import SECONDS_FILE, Box, Comparison, Ended, Step
from experiments.gpu.options import CampaignOptions
from experiments.gpu.stages import GUESSES, LEAST_BUDGET_S, boxes, left_out
from experiments.gpu.state import State
from pruner.files import held
from pruner.paths import sources_folder

Write = Callable[[CampaignOptions], Any]


class Campaign(Comparison):
    """All stages of a device, each started again until it is done.

    ``write`` is called after every stage; ``environment`` is added to that of every command, and
    ``more`` are arguments of `Comparison`.
    """

    def __init__(
        self,
        options: CampaignOptions,
        *,
        write: Write,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        self._options, self._write = options, write
        self._state = State(options.out, options.device)
        paths = [str(sources_folder()), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            options.out,
            options.out,
            GUESSES,
            # Apart from compiled runs: their seconds predict nothing for a machine with the device.
            times=options.outputs / SECONDS_FILE,
            environment={
                **(environment or {}),
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            },
            **more,
        )

    @property
    def boxes(self) -> list[Box]:
        """The stages as time slots."""
        return boxes(self._options)

    def log_left_out(self) -> None:
        """Report stages without work, and their missing inputs."""
        for line in left_out(self._options):
            self.log(line)

    def plan(self) -> list[dict[str, Any]]:
        """The work to do: a row a step, with minutes.

        Minutes are those of the step and of its stage.
        """
        limits = {box.name: box.seconds / 60 for box in self.boxes}
        return [{**row, "of": limits[row["box"]]} for row in super().plan()]

    def run_campaign(self, asked: Mapping[str, Any]) -> None:
        """Run the missing stages within the minutes.

        ``asked``: the options, which are stored.

        Raises:
            PrunerError: another process works in the folder.
        """
        self.runs.mkdir(parents=True, exist_ok=True)
        with held(self.runs):
            self._state.begin(asked)
            self.log_left_out()
            self.run_all()

    def after(self, box: Box) -> None:
        """Write the tables so far; an error is reported and ends nothing.

        The minutes of a device cannot be repeated, tables can be made later.
        """
        try:
            self._write(self._options)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.log(f"no tables ({what}); they can be made later, by summary=true")

    @property
    def undone(self) -> list[str]:
        """Names of the steps that are not done."""
        return [step.name for box in self.boxes for step in box.steps() if not step.done]

    def run(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run one command, with readings of the device before and after it."""
        self._state.note(step.name, "before")
        try:
            return self.command(step, share_s, limit_s)
        finally:
            self._state.note(step.name, "after")

    def command(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run one command, its budget shortened by the seconds around it."""
        least_s = min(LEAST_BUDGET_S, limit_s - step.start_s)
        return super().run(step, max(1.0, least_s, share_s - step.start_s), limit_s)
