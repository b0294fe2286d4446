"""Which task gets the next batch: round-robin, or where the gradient of the total time is largest.

The gradient scheduler is Ansor's [Zheng2020, section 6]: a task's gradient mixes its recent
improvement a trial with an optimistic guess, weighted by how often the task occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pruner.errors import PrunerError

Order = Literal["gradient", "round_robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """Best latency (seconds, infinite while unknown) after every batch of a task."""

    weight: float
    flops: float
    best_s: Sequence[float]
    exhausted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSettings:
    """Ansor's constants: ``alpha`` trusts the recent slope, ``beta`` bounds what similar tasks
    promise, ``window`` batches are looked back."""

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3


def check_order(order: str) -> None:
    """Raise `PrunerError` for an unknown order."""
    if order not in get_args(Order):
        raise PrunerError(f"task_order={order}: it must be one of {', '.join(get_args(Order))}")


def next_task(
    order: Order, tasks: Sequence[TaskProgress], settings: GradientSettings | None = None
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
    chosen = settings or GradientSettings()
    return max(live, key=lambda i: (gain(tasks, i, chosen), -i))


def gain(tasks: Sequence[TaskProgress], index: int, settings: GradientSettings) -> float:
    """Expected decrease of the weighted total latency by one more batch (seconds)."""
    task = tasks[index]
    latest = task.best_s[-1]
    if latest == float("inf"):  # nothing of it ran yet: as urgent as can be
        return float("inf")
    window = min(settings.window, len(task.best_s) - 1)
    earlier = task.best_s[-1 - window]
    slope = (earlier - latest) / window if window and earlier != float("inf") else 0.0
    hope = latest / len(task.best_s)  # as if n more batches would win all that is left
    rates = [t.flops / t.best_s[-1] for t in tasks if t.best_s and t.best_s[-1] < float("inf")]
    if task.flops and max(rates) > 0:  # or: up to the speed of the best task, a factor beta apart
        hope = max(hope, latest - settings.beta * task.flops / max(rates))
    return task.weight * (settings.alpha * slope + (1 - settings.alpha) * hope)
