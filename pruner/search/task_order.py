"""Choose the next task: round-robin, or by the gradient of total latency.

The gradient is Ansor's [Zheng2020, section 6, and TVM 0.19, task_scheduler.py]: recent improvement
a trial and an optimistic guess by similar tasks, weighted by how often the task occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pruner.errors import PrunerError

Order = Literal["gradient", "round_robin"]
USUAL: Order = "gradient"
_MAGNITUDE = 1.618  # Ansor calls tasks of an operator similar within this factor of arithmetic
# Trials of each of several tasks in its first round: this share of the budget, at least enough to
# see which programs are good, at most enough to show just that.
_FIRST_SHARE, _FIRST_LEAST, _FIRST_MOST = 0.3, 4, 10
_ALPHA, _WINDOW = 0.2, 3  # Ansor's: weight of the slope of so many batches
_BETA, _PATIENCE = 2.0, 5  # similar tasks reach speeds within it, unless slower for more batches
_FRUITLESS = 3  # ours: after so many batches without a program that runs, a task is not urgent


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """Best latency (seconds, infinite without program) after every batch of a task.

    ``operator``: None is similar to none; ``alone``: see :func:`stays_behind`; ``awaited``: the
    latest results are missing; ``exhausted``: no programs left.
    """

    weight: float
    flops: float
    best_s: Sequence[float]
    operator: str | None = None
    alone: bool = False
    awaited: bool = False
    exhausted: bool = False

    @property
    def latest_s(self) -> float:
        """Seconds of the best program; infinite while none ran."""
        return self.best_s[-1] if self.best_s else float("inf")

    @property
    def speed(self) -> float:
        """Operations a second of the best program; 0 while none ran."""
        return self.flops / self.best_s[-1] if self.best_s else 0.0

    @property
    def group(self) -> tuple[str, int] | None:
        """Group of similar tasks; None: similar to no other task."""
        if self.operator is None or self.alone:
            return None
        # TVM's derive_similarity_tag appends the same rounded logarithm to the operator's tag.
        return self.operator, int(math.log(self.flops + 1) / math.log(_MAGNITUDE))


def check_order(order: str) -> None:
    """Raise `PrunerError` for an unknown order."""
    if order not in get_args(Order):
        raise PrunerError(f"task_order={order}: it must be one of {', '.join(get_args(Order))}")


def round_size(batch: int, trials: int, tasks: int, *, first: bool) -> int:
    """Number of candidates of a round; small in the first of several tasks' rounds."""
    if not first or tasks == 1:
        return batch
    share = max(_FIRST_LEAST, int(_FIRST_SHARE * trials / tasks))
    return max(1, min(batch, _FIRST_MOST, share, trials // tasks))


def next_task(order: Order, tasks: Sequence[TaskProgress]) -> int | None:
    """Index of the next task; None when every task is exhausted.

    Every task gets a batch first. Raises `PrunerError` for an unknown order.
    """
    check_order(order)
    live = [i for i, task in enumerate(tasks) if not task.exhausted]
    if not live:
        return None
    fewest = min(live, key=lambda i: (len(tasks[i].best_s), i))
    if order == "round_robin" or not tasks[fewest].best_s:
        return fewest
    # Ties go to the first task: a resumed run must choose the same.
    return max(live, key=lambda i: (gain(tasks, i), -i))


def gain(tasks: Sequence[TaskProgress], index: int) -> float:
    """Expected decrease of the weighted total latency by another batch (seconds)."""
    task = tasks[index]
    batches, latest = len(task.best_s), task.best_s[-1]
    if latest == float("inf"):  # nothing ran yet: infinitely urgent, but not for ever
        if task.awaited:  # and not before the first results show whether anything runs
            return 0.0
        others = [len(t.best_s) for t in tasks if t is not task and not t.exhausted]
        return float("inf") if batches <= max(_FRUITLESS, min(others, default=0)) else 0.0
    window = min(_WINDOW, batches - 1)
    earlier = task.best_s[-1 - window]
    slope = (earlier - latest) / window if window and earlier != float("inf") else 0.0
    hope = latest / batches  # Ansor's optimistic guess: n more batches win all that is left
    fastest = max((t.speed for t in _similar(tasks, index)), default=0.0)
    if fastest > 0:  # or reach the speed of the best similar task, up to the factor beta
        hope = max(hope, latest - _BETA * task.flops / max(fastest, task.speed))
    return task.weight * (_ALPHA * slope + (1 - _ALPHA) * hope)


def stays_behind(tasks: Sequence[TaskProgress], index: int) -> bool:
    """Whether a task is slower than its group after many batches, so set ``alone``."""
    task, others = tasks[index], _similar(tasks, index)
    if not others:
        return False
    most = max(len(other.best_s) for other in others)
    slow = task.speed < max(other.speed for other in others) / _BETA
    return slow and len(task.best_s) > _PATIENCE + most


def _similar(tasks: Sequence[TaskProgress], index: int) -> list[TaskProgress]:
    group = tasks[index].group
    if group is None:
        return []
    return [t for i, t in enumerate(tasks) if i != index and t.group == group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Latency of all tasks together (seconds): ``sum weight * best``.

    Unmeasured tasks count with the mean speed of the others, a ``measured_share`` of the
    arithmetic.
    """

    latency_s: float
    measured_share: float

    @staticmethod
    def of(tasks: Iterable[tuple[float, float, float]]) -> Estimate:
        """Estimate the latency from each task's (weight, operations of a call, best seconds).

        The seconds of an unmeasured task are infinite. The latency is infinite if no task is
        measured.
        """
        total = known = known_s = 0.0
        missing = False
        for weight, flops, latest_s in tasks:
            total += weight * flops
            if latest_s == float("inf"):
                missing = True
                continue
            known += weight * flops
            known_s += weight * latest_s
        if not missing:
            return Estimate(latency_s=known_s, measured_share=1.0)
        # Scaling by the share of arithmetic is the same as giving the missing tasks the mean speed.
        share = known / total if total else 0.0
        return Estimate(latency_s=known_s / share if share else float("inf"), measured_share=share)


def has_settled(latency_s: Sequence[float], rounds: int | None, tolerance: float) -> bool:
    """Whether `rounds` (None: never) changed the estimate by less than a `tolerance`."""
    if rounds is None or len(latency_s) <= rounds:
        return False
    before_s = latency_s[-1 - rounds]
    return abs(before_s - latency_s[-1]) < tolerance * before_s
