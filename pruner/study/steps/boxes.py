"""Many steps in order, those of a box within its seconds; what is done is skipped."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pruner.progress import Tell, silent
from pruner.study.steps.command import Ended
from pruner.study.steps.step import Step
from pruner.study.steps.times import Times

Run = Callable[[Step, float, float], Ended]  # a step, the seconds it may use, when it is ended
Clock = Callable[[], float]
CUT = 0.5  # of what it is expected to take a step with a budget gets, if its box can give it


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
    """Run time slots ("boxes") with fixed deadlines: unused time goes to later slots.

    A step with a budget gets its share of the time left (`fair_share_s`), and every step is ended
    at the end of its slot. A step that fails, or lacks an input, is reported; the others go on.
    ``after`` is called after every box.
    """

    run: Run
    times: Times
    tell: Tell
    clock: Clock = field(default=time.monotonic)
    after: Callable[[Box], None] = silent

    def run_all(self, boxes: Iterable[Box]) -> None:
        """Run what is not done."""
        spare_s = 0.0
        for box in boxes:
            ends = self.clock() + box.seconds + spare_s
            self._run_box(box, ends)
            self.after(box)
            spare_s = 0.0 if box.seconds == float("inf") else ends - self.clock()

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
            self._run_step(step, fair_share_s(left, self.times, left_s), left_s)

    def _run_step(self, step: Step, share_s: float, left_s: float) -> None:
        start = self.clock()
        self.tell(f"{step.name}: about {min(left_s, self.times.expected_s(step)) / 60:.1f} minutes")
        ended = self.run(step, share_s, left_s)
        seconds = self.clock() - start
        self.tell(f"{step.name}: {_ending(ended)}, {seconds:.0f} s")
        if ended.well:
            step.keep()
            self.times.keep(step, step.spent_s + seconds)  # what it did, earlier starts did too


def _ending(ended: Ended) -> str:
    if ended.code is None:
        return "ended, its box is over"
    if ended.well:
        return "done, but parts of it came to nothing" if ended.code else "done"
    return f"exit code {ended.code}: {ended.line}"


def fair_share_s(steps: Sequence[Step], times: Times, left_s: float) -> float:
    """Seconds of `left_s` for the first of the unfinished `steps` of a time slot.

    Steps without a budget are not limited. The others share the rest in proportion to their
    expected times. A step is shortened to at most `CUT` of its expected time; if that is not
    enough, the last steps are dropped.
    """
    first, *others = steps
    if left_s == float("inf") or not first.budget:
        return left_s
    fixed_s, shared_s = 0.0, times.expected_s(first)
    for step in others:
        needed_s = times.expected_s(step)
        more = (0.0, needed_s) if step.budget else (needed_s, 0.0)
        if fixed_s + more[0] + CUT * (shared_s + more[1]) > left_s:
            break
        fixed_s, shared_s = fixed_s + more[0], shared_s + more[1]
    return (left_s - fixed_s) * times.expected_s(first) / shared_s


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
