"""Summarise offline tunings: areas, times to the baseline's result, labels, forgetting.

Cells of equal seed start from the same random draws, so methods are compared in pairs. Intervals
resample seeds; they do not cover how far a result carries over to other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.search.offline.adaptation_run import Quality, TuningCurve

Unit = Literal["trials", "seconds"]


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

    def _areas(self, method: str) -> NDArray[np.float64]:
        return np.array([cell.curve.area for cell in self.cells(method)])

    def _to_target(self, cells: Sequence[MethodRun], unit: Unit) -> dict[str, Any]:
        """Restricted mean (Kaplan-Meier) up to the longest run, and runs that arrived."""
        runs = [self.reach(cell, unit) for cell in cells]
        horizon = self.horizon[unit]

        # Resamples whole runs, so that a censored run stays together with its time.
        def mean(rows: NDArray[np.int64]) -> float:
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
    statistic: Callable[[NDArray[np.int64]], float],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic of the numbers of `num` resampled units."""
    rng = np.random.default_rng(seed)
    drawn = [statistic(rng.integers(0, num, num)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
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
