"""Tune recorded tasks with an adaptation method; judge it by labels.

All tasks share one ranker and take turns, a batch each (docs/paper.md section 6, round-robin).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from pruner.data.tasks import TaskKey
from pruner.models.adaptation.base import Adaptation
from pruner.models.judging import metrics
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import Center
from pruner.models.ranker import Ranker
from pruner.search.decision_search import decision_search
from pruner.search.offline.recorded import RecordedLearner, RecordedModel, RecordedTask, table
from pruner.search.offline.recorded_run import Clock, Curve, RecordedMeasurer, run_tasks
from pruner.search.policy import PolicySettings, RandomDraws, RoundSettings

_DRAWS = 512  # of random search, at once


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningCurve:
    """A tuning of several tasks, once every task has a measured program.

    ``trials`` [n] counts from the start; ``relative_latency`` [n]: geometric mean over tasks of
    best found / best of the pool, at least 1; ``elapsed_s`` [n].
    """

    trials: NDArray[np.int64]
    relative_latency: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Mean of log(relative latency) over the trials; 0 is perfect."""
        return float(np.log(self.relative_latency).mean())

    @property
    def final(self) -> float:
        """Relative latency when the budget is spent."""
        return float(self.relative_latency[-1])


def tune(
    pools: Sequence[RecordedTask],
    adaptation: Adaptation | None,
    settings: RoundSettings,
    *,
    trials: int,
    batch: int,
    seed: int,
) -> TuningCurve:
    """Tune all pools with one model; without an adaptation, at random."""
    clock = Clock()
    model = None if adaptation is None else RecordedModel(pools, adaptation)
    tasks = []
    for number, pool in enumerate(pools):
        # One stream a task: methods with equal seeds start from equal draws, and are paired.
        rng = np.random.default_rng([seed, number])
        measurer = RecordedMeasurer(pool.space, pool.latency_s, pool.cost_s, clock)
        chosen: PolicySettings = RandomDraws(draws=_DRAWS)
        draft = learner = None
        if model is not None:
            learner = RecordedLearner(model, number)
            rounds = settings if pool.draft is not None else without_draft(settings)
            if pool.draft is not None and rounds.draft is not None:
                draft = table(pool.space, pool.draft)
            chosen = rounds
        tasks.append((decision_search(pool.space, chosen, draft, learner, rng), measurer))
    return relative_curve(run_tasks(tasks, trials=trials, batch=batch), pools)


def affordable(pools: Sequence[RecordedTask], trials: int) -> int:
    """At most `trials`, and at most half of the smallest pool a task."""
    return min(trials, len(pools) * (min(map(len, pools)) // 2))


def without_draft(settings: RoundSettings) -> RoundSettings:
    """The same round with random programs in place of drafted programs."""
    if settings.draft is None:
        return settings
    # The same number of programs reaches the learned model, so that only their origin differs.
    more = settings.random_sample + settings.draft.keep
    return replace(settings, draft=None, random_sample=more, first_apart=0.0)


def relative_curve(curve: Curve, pools: Sequence[RecordedTask]) -> TuningCurve:
    """Latencies relative to each pool's best, once every task is measured."""
    best_s = np.array([pool.latency_s.min() for pool in pools])
    whole = np.isfinite(curve.best_s).all(axis=1)
    relative = np.exp(np.log(curve.best_s[whole] / best_s).mean(axis=1))
    return TuningCurve(
        trials=1 + np.flatnonzero(whole),
        relative_latency=relative,
        elapsed_s=curve.elapsed_s[whole],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Top-1 and Top-5 on tasks that were never tuned."""

    top1: float
    top5: float

    @staticmethod
    def of(ranker: Ranker, store: ProgramTable) -> Quality:
        """Score a whole store."""
        scored = ranker.score_tasks(store, torch.arange(store.num_programs))
        return Quality(top1=metrics.top_k(scored, 1), top5=metrics.top_k(scored, 5))


def label_sizes(wanted: Sequence[int | str], available: int) -> dict[str, int]:
    """Numbers of labels by name; "all" means `available`.

    Numbers that are not below `available` are left out.

    >>> label_sizes([0, 100, 1000, "all"], 500)
    {'0': 0, '100': 100, 'all': 500}
    """
    sizes = {str(n): int(n) for n in wanted if n != "all" and int(n) < available}
    return {**sizes, "all": available} if "all" in wanted else sizes


def quality_by_labels(
    make: Callable[[], Adaptation],
    labelled: ProgramTable,
    held_out: ProgramTable,
    sizes: dict[str, int],
    *,
    seed: int,
) -> dict[str, Quality]:
    """Quality on held-out tasks after one fit, by number of labels of nested draws.

    A method that learns at every n-th update is updated n times with the same labels.
    """
    drawn = torch.randperm(labelled.num_programs, generator=torch.Generator().manual_seed(seed))
    centers = centers_of(labelled)
    found = {}
    for name, size in sizes.items():
        adaptation = make()
        adaptation.ranker.centers.update(centers)
        for _ in range(adaptation.period if size else 0):
            adaptation.update(labelled.subset(drawn[:size]))
        found[name] = Quality.of(adaptation.ranker, held_out)
    return found


def centers_of(store: ProgramTable) -> dict[TaskKey, Center]:
    """The mean program of every task."""
    tasks = store.by_task(torch.arange(store.num_programs))
    return {store.key_of(index): Center.of(store.programs(index)) for index in tasks}
