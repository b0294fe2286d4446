"""The noise ceiling: a repeated measurement judged as a ranking.

Where every program was timed twice, minutes apart, the second timing is judged as a ranking of the
programs against the first, and the other way round, and both are averaged. It is no bound: the
errors of a timing count twice here, in the ranking and in its reference, so a model that averages
noise away may pass it. An order of the true latencies would have a pairwise accuracy of at most
``(1 + sqrt(2 p - 1)) / 2`` where that of a second timing is p, judged by one timing (per pair ``p =
q^2 + (1 - q)^2`` with q of the true order, and the root is concave); labels are means of two
timings and err less.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask


def noise_ceiling(tasks: Sequence[ScoredTask]) -> dict[str, Any] | None:
    """Top-1, Top-5 and pairwise accuracy of a second timing.

    Top-k as ratios of sums and as task means. ``num_tasks``, ``num_programs``: those with two
    timings; ``spread``: median of the relative difference of the two. None where no task has two
    such programs.
    """
    found = [twice for task in tasks if (twice := _timed_twice(task)) is not None]
    if not found:
        return None
    sides = [[pair[0] for pair in found], [pair[1] for pair in found]]
    first = np.concatenate([task.latency_s for task in sides[0]])
    second = np.concatenate([task.latency_s for task in sides[1]])

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    return {
        "top1": mean([metrics.top_k(side, 1) for side in sides]),
        "top5": mean([metrics.top_k(side, 5) for side in sides]),
        "top1_task_mean": mean([metrics.top_k_task_mean(side, 1) for side in sides]),
        "top5_task_mean": mean([metrics.top_k_task_mean(side, 5) for side in sides]),
        "pairwise_accuracy": mean([metrics.pairwise_accuracy(side) for side in sides]),
        "spread": float(np.median(np.abs(second / first - 1.0))),
        "num_tasks": len(found),
        "num_programs": len(first),
    }


def _timed_twice(task: ScoredTask) -> tuple[ScoredTask, ScoredTask] | None:
    """The first timing judged by the second, and the other way round."""
    if task.timed_s is None:
        return None
    known = task.timed_s[np.isfinite(task.timed_s).all(axis=1)]
    if len(known) < 2:
        return None
    # Negated seconds are scores, so a timing is judged like a model.
    one, other = known.T
    return (
        ScoredTask(name=task.name, latency_s=one, score=-other, weight=task.weight),
        ScoredTask(name=task.name, latency_s=other, score=-one, weight=task.weight),
    )
