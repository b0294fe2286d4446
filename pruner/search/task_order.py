"""Which task gets the next batch: round-robin, or where the gradient of the total time is largest.

The gradient scheduler is Ansor's [Zheng2020, section 6, and TVM 0.19, auto_scheduler,
task_scheduler.py]: a task's gradient mixes its recent improvement a trial with an optimistic guess,
weighted by how often the task occurs. The guess looks at similar tasks, as Ansor groups them: the
same operator with the same order of magnitude of arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pruner.errors import PrunerError

Order = Literal["gradient", "round_robin"]
USUAL: Order = "gradient"
_MAGNITUDE = 1.618  # of arithmetic, within which Ansor calls two tasks of an operator similar
# Trials of every task before any is continued, where there are several: so much of the budget,
# but enough to see which programs are good, and not more than show that.
_FIRST_SHARE, _FIRST_LEAST, _FIRST_MOST = 0.3, 4, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """Best latency (seconds, infinite while unknown) after every batch of a task.

    ``operator`` says which tasks may be similar (None: to no other); ``alone``: it was found to be
    like no other, see :func:`stays_behind`. ``awaited``: the results of its latest batch, of which
    nothing is known yet, are on their way.
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
        """Seconds of its best program; infinite while none ran."""
        return self.best_s[-1] if self.best_s else float("inf")

    @property
    def speed(self) -> float:
        """Operations a second of its best program; 0 while none ran."""
        return self.flops / self.best_s[-1] if self.best_s else 0.0

    @property
    def group(self) -> tuple[str, int] | None:
        """Tasks of one group are similar; None: it is like no other."""
        if self.operator is None or self.alone:
            return None
        return self.operator, int(math.log(self.flops + 1) / math.log(_MAGNITUDE))


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSettings:
    """Ansor's constants.

    ``alpha`` trusts the recent slope, ``window`` batches back; ``beta``: similar tasks reach speeds
    within this factor. A task that is slower after ``patience`` batches more than any other of its
    group is not similar after all. ``fruitless`` (ours): so many batches without a program that
    runs, then a task is no more urgent than the others.
    """

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    patience: int = 5
    fruitless: int = 3


DEFAULT = GradientSettings()


def check_order(order: str) -> None:
    """Raise `PrunerError` for an unknown order."""
    if order not in get_args(Order):
        raise PrunerError(f"task_order={order}: it must be one of {', '.join(get_args(Order))}")


def round_size(batch: int, trials: int, tasks: int, *, first: bool) -> int:
    """Candidates of a round; the first one of each of several tasks is small, so that a small
    budget reaches them all and most of it goes where it pays."""
    if not first or tasks == 1:
        return batch
    share = max(_FIRST_LEAST, int(_FIRST_SHARE * trials / tasks))
    return max(1, min(batch, _FIRST_MOST, share, trials // tasks))


def next_task(
    order: Order, tasks: Sequence[TaskProgress], settings: GradientSettings = DEFAULT
) -> int | None:
    """Index of the next task, None when all are exhausted. Every task gets one batch first.

    Raises:
        PrunerError: unknown order.
    """
    check_order(order)
    live = [i for i, task in enumerate(tasks) if not task.exhausted]
    if not live:
        return None
    fewest = min(live, key=lambda i: (len(tasks[i].best_s), i))
    if order == "round_robin" or not tasks[fewest].best_s:
        return fewest
    return max(live, key=lambda i: (gain(tasks, i, settings), -i))


def gain(tasks: Sequence[TaskProgress], index: int, settings: GradientSettings = DEFAULT) -> float:
    """Expected decrease of the weighted total latency by one more batch (seconds)."""
    task = tasks[index]
    batches, latest = len(task.best_s), task.best_s[-1]
    if latest == float("inf"):  # nothing of it ran yet: as urgent as can be, but not for ever
        if task.awaited:  # nor before its first results tell whether that is so
            return 0.0
        others = [len(t.best_s) for t in tasks if t is not task and not t.exhausted]
        return float("inf") if batches <= max(settings.fruitless, min(others, default=0)) else 0.0
    window = min(settings.window, batches - 1)
    earlier = task.best_s[-1 - window]
    slope = (earlier - latest) / window if window and earlier != float("inf") else 0.0
    hope = latest / batches  # as if n more batches would win all that is left
    fastest = max((t.speed for t in _similar(tasks, index)), default=0.0)
    if fastest > 0:  # or: up to the speed of the best similar task, a factor beta apart
        hope = max(hope, latest - settings.beta * task.flops / max(fastest, task.speed))
    return task.weight * (settings.alpha * slope + (1 - settings.alpha) * hope)


def stays_behind(
    tasks: Sequence[TaskProgress], index: int, settings: GradientSettings = DEFAULT
) -> bool:
    """Whether a task was tuned for long and is still slower than its group lets expect.

    Then it is not similar to the others: whoever asks should note it as ``alone``.
    """
    task, others = tasks[index], _similar(tasks, index)
    if not others:
        return False
    most = max(len(other.best_s) for other in others)
    slow = task.speed < max(other.speed for other in others) / settings.beta
    return slow and len(task.best_s) > settings.patience + most


def _similar(tasks: Sequence[TaskProgress], index: int) -> list[TaskProgress]:
    """The other tasks of its group."""
    group = tasks[index].group
    if group is None:
        return []
    return [t for i, t in enumerate(tasks) if i != index and t.group == group]
