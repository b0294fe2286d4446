"""Many steps in order, those of a box within its seconds; what is done is skipped."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pruner.progress import Tell
from pruner.study.steps.command import Ended
from pruner.study.steps.step import Step
from pruner.study.steps.times import Times

Run = Callable[[Step, float, float], Ended]  # a step, the seconds it may use, when it is ended
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Steps that share ``seconds``; ``least_s``: with less left none is begun.

    Steps may depend on what earlier ones found, so they are made when they are asked for.
    """

    name: str
    steps: Callable[[], Iterable[Step]]
    seconds: float = float("inf")
    least_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class BoxRunner:
    """Runs boxes: a box begins with the seconds that those before it did not use.

    Of what is left of its box a step may use its share by what all the box's unfinished steps are
    expected to take, and is ended once the box is over. One that fails, or lacks what it needs, is
    told and costs itself.
    """

    run: Run
    times: Times
    tell: Tell
    clock: Clock = field(default=time.monotonic)

    def run_all(self, boxes: Iterable[Box]) -> None:
        """Run what is not done."""
        spare_s = 0.0
        for box in boxes:
            ends = self.clock() + box.seconds + spare_s
            self._run_box(box, ends)
            spare_s = 0.0 if box.seconds == float("inf") else max(0.0, ends - self.clock())

    def _run_box(self, box: Box, ends: float) -> None:
        tried: set[str] = set()
        while True:
            left = [step for step in box.steps() if not step.done and step.name not in tried]
            if not left:
                return
            step, left_s = left[0], ends - self.clock()
            if left_s < box.least_s:
                names = ", ".join(one.name for one in left)
                self.tell(f"{box.name}: {max(0.0, left_s):.0f} s left, not begun: {names}")
                return
            tried.add(step.name)
            if step.lacks:
                self.tell(f"{step.name}: left out, not done: {', '.join(step.lacks)}")
                continue
            self._run_step(step, self._share_s(step, left, left_s), left_s)

    def _share_s(self, step: Step, left: list[Step], left_s: float) -> float:
        if left_s == float("inf"):
            return left_s
        expected_s = sum(self.times.expected_s(one) for one in left)
        return left_s * self.times.expected_s(step) / expected_s

    def _run_step(self, step: Step, share_s: float, left_s: float) -> None:
        start = self.clock()
        self.tell(f"{step.name}: about {min(left_s, self.times.expected_s(step)) / 60:.1f} minutes")
        ended = self.run(step, share_s, left_s)
        seconds = self.clock() - start
        ending = "done" if ended.code == 0 else f"exit code {ended.code}: {ended.line}"
        if ended.code is None:
            ending = "ended, its box is over"
        self.tell(f"{step.name}: {ending}, {seconds:.0f} s")
        if ended.code == 0:
            self.times.keep(step, seconds)


def plan(boxes: Iterable[Box], times: Times) -> list[dict[str, Any]]:
    """What there is to do, a row a step, with the minutes that it may take."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for box in boxes:
        for step in box.steps():
            if step.name not in seen and not step.done:
                minutes = times.expected_s(step) / 60
                rows.append({"box": box.name, "step": step.name, "minutes": minutes})
            seen.add(step.name)
    return rows
