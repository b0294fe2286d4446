"""Tune recorded tasks with adaptation methods, judge methods by labels, and compare them.

All tasks share one ranker and take turns, a batch each (docs/paper.md section 6, round-robin). Runs
of equal seed start from the same random draws, so methods are compared in pairs. Intervals resample
seeds; they do not cover how far a result carries over to other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from pruner.arrays import Floats, Ints
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
Unit = Literal["trials", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningCurve:
    """A tuning of several tasks, once every task has a measured program.

    ``trials`` [n] counts from the start; ``relative_latency`` [n]: geometric mean over tasks of
    best found / best of the pool, at least 1; ``elapsed_s`` [n].
    """

    trials: Ints
    relative_latency: Floats
    elapsed_s: Floats

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
    tasks = labelled.by_task(torch.arange(labelled.num_programs))
    centers = {labelled.key_of(index): Center.of(labelled.programs(index)) for index in tasks}
    found = {}
    for name, size in sizes.items():
        adaptation = make()
        adaptation.ranker.centers.update(centers)
        for _ in range(adaptation.period if size else 0):
            adaptation.update(labelled.subset(drawn[:size]))
        found[name] = Quality.of(adaptation.ranker, held_out)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRun:
    """The tuning curve of one method with one seed.

    ``labels``: quality on held-out target tasks by number of labels; ``source``: quality on
    held-out tasks of the source platform after tuning, None where no ranker was used.
    """

    method: str
    seed: int
    curve: TuningCurve
    labels: Mapping[str, Quality] = field(default_factory=dict)
    source: Quality | None = None

    def to_json(self) -> dict[str, Any]:
        """The cell as plain values."""
        curve = {name: values.tolist() for name, values in asdict(self.curve).items()}
        return {**asdict(self), "curve": curve}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> MethodRun:
        """Inverse of `to_json`."""
        curve = {name: np.array(v) for name, v in values["curve"].items()}
        return MethodRun(
            method=values["method"],
            seed=values["seed"],
            curve=TuningCurve(**curve),
            labels={name: Quality(**q) for name, q in values["labels"].items()},
            source=None if values["source"] is None else Quality(**values["source"]),
        )


class MethodComparison:
    """The cells of one source and target, every method with every seed of `baseline`."""

    def __init__(self, cells: Sequence[MethodRun], baseline: str) -> None:
        self.baseline = baseline
        self.methods = list(dict.fromkeys(cell.method for cell in cells))
        self.seeds = sorted({cell.seed for cell in cells})
        self._cells = {(cell.method, cell.seed): cell for cell in cells}
        curves = [cell.curve for cell in cells]
        self.horizon: dict[Unit, float] = {
            "trials": float(max(curve.trials[-1] for curve in curves)),
            "seconds": float(max(curve.elapsed_s[-1] for curve in curves)),
        }

    def cells(self, method: str) -> list[MethodRun]:
        """Cells of a method by ascending seed."""
        return [self._cells[method, seed] for seed in self.seeds]

    def reach(self, cell: MethodRun, unit: Unit) -> Reach:
        """When a run reached the baseline's final latency of its seed."""
        target = self._cells[self.baseline, cell.seed].curve.final
        curve = cell.curve
        at = curve.trials.astype(np.float64) if unit == "trials" else curve.elapsed_s
        return first_reach(curve.relative_latency, at, target)

    def summary(self, method: str) -> dict[str, Any]:
        """Figures of a method, each with a 95 % interval over seeds."""
        cells = self.cells(method)
        out: dict[str, Any] = {
            "area": _with_interval([cell.curve.area for cell in cells]),
            "final": _with_interval([cell.curve.final for cell in cells]),
        }
        for unit in ("trials", "seconds"):
            out[f"{unit}_to_target"] = self._to_target(cells, unit)
        out["p_better"] = {
            other: sign_flip_p(self._areas(other) - self._areas(method))
            for other in self.methods
            if other != method
        }
        if cells[0].labels:
            out["top1_by_labels"] = _by_labels(cells, "top1")
            out["top5_by_labels"] = _by_labels(cells, "top5")
        after = [cell.source.top1 for cell in cells if cell.source is not None]
        if after:
            out["source_top1_after"] = _with_interval(after)
        return out

    def _areas(self, method: str) -> Floats:
        return np.array([cell.curve.area for cell in self.cells(method)])

    def _to_target(self, cells: Sequence[MethodRun], unit: Unit) -> dict[str, Any]:
        """Restricted mean (Kaplan-Meier) up to the longest run, and runs that arrived."""
        runs = [self.reach(cell, unit) for cell in cells]
        horizon = self.horizon[unit]

        # Resamples whole runs, so that a censored run stays together with its time.
        def mean(rows: Ints) -> float:
            return restricted_mean([runs[row] for row in rows], horizon)

        everything = mean(np.arange(len(runs)))
        totals = self.cells(self.baseline)
        total = np.mean([
            c.curve.trials[-1] if unit == "trials" else c.curve.elapsed_s[-1] for c in totals
        ])  # fmt: skip
        return {
            "mean": everything,
            "interval": bootstrap_interval(len(runs), mean),
            "reached": sum(run.reached for run in runs),
            "runs": len(runs),
            # A ratio of means: a mean of ratios would drop the runs that never arrived.
            "speedup": float(total) / everything,
        }


def _with_interval(values: Sequence[float]) -> dict[str, Any]:
    array = np.array(values)
    interval = bootstrap_interval(len(array), lambda rows: float(array[rows].mean()))
    return {"mean": float(array.mean()), "interval": interval}


def _by_labels(cells: Sequence[MethodRun], metric: str) -> dict[str, Any]:
    return {
        name: _with_interval([getattr(cell.labels[name], metric) for cell in cells])
        for name in cells[0].labels
    }


_MOST_EXACT = 16  # pairs whose sign flips are all enumerated
_SAMPLED_FLIPS = 20_000


def sign_flip_p(differences: Floats, *, seed: int = 0) -> float:
    """One-sided p, by sign flips (exact up to 16), of a positive mean difference."""
    num = len(differences)
    if num <= _MOST_EXACT:
        bits = np.arange(2**num)[:, None] >> np.arange(num)[::-1]  # the first row flips nothing
        signs = 1.0 - 2.0 * (bits & 1)
    else:
        drawn = np.random.default_rng(seed).choice((1.0, -1.0), (_SAMPLED_FLIPS, num))
        # The observed signs count as a draw, so that p is never 0 (Phipson and Smyth 2010).
        signs = np.concatenate([np.ones((1, num)), drawn])
    # The tolerance counts ties by rounding as ties.
    return float((signs @ differences >= differences.sum() - 1e-12).mean())


def bootstrap_interval(
    num: int,
    statistic: Callable[[Ints], float],
    *,
    resamples: int = 2000,
) -> tuple[float, float]:
    """95 % percentile interval of a statistic of the numbers of `num` resampled units."""
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(0, num, num)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """When a run reached its target, or when it stopped without."""

    at: float
    reached: bool


def first_reach(best: Floats, at: Floats, target: float) -> Reach:
    """The first entry of ``at`` whose ``best``, never rising, is at most the target."""
    hit = np.flatnonzero(best <= target)
    return Reach(at=float(at[hit[0]] if len(hit) else at[-1]), reached=bool(len(hit)))


def restricted_mean(runs: Sequence[Reach], horizon: float) -> float:
    """Mean time to the target up to `horizon`: the area under the Kaplan-Meier curve.

    Runs that did not reach their target are censored when they stopped (after runs that reached at
    the same time). Raises ValueError without runs.
    """
    if not runs:
        raise ValueError("restricted_mean: no run")
    area, survival, before = 0.0, 1.0, 0.0
    at_risk = len(runs)
    for run in sorted(runs, key=lambda r: (r.at, not r.reached)):
        if run.at >= horizon:
            break
        area += survival * (run.at - before)
        before = run.at
        if run.reached:
            survival *= 1.0 - 1.0 / at_risk
        at_risk -= 1
    return area + survival * (horizon - before)
