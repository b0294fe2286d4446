"""Compare searches: paired tests, bootstrap intervals, censored times.

A run that did not reach its target within its budget is *censored*: its time is longer than the
run, by an unknown amount. Leaving it out would flatter the method; so it counts in the survival
curve of Kaplan and Meier until it stopped, and the mean is restricted to a common horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats

_MOST_EXACT = 16  # pairs whose sign flips are all enumerated
_SAMPLED_FLIPS = 20_000


def sign_flip_p(differences: Floats, *, seed: int = 0) -> float:
    """One-sided p, by sign flips, that the mean paired difference is positive.

    Exact up to 16 pairs (then the smallest possible p is ``2**-pairs``), sampled above.
    """
    num = len(differences)
    if num <= _MOST_EXACT:
        bits = np.arange(2**num)[:, None] >> np.arange(num)[::-1]  # the first row flips nothing
        signs = 1.0 - 2.0 * (bits & 1)
    else:
        drawn = np.random.default_rng(seed).choice((1.0, -1.0), (_SAMPLED_FLIPS, num))
        # The observed signs count as one of the draws, so that p is never 0 (Phipson and Smyth
        # 2010).
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
    """Percentile interval of a statistic of `num` units, resampled with replacement.

    `statistic` receives the numbers of the resampled units, so that paired data stay paired.
    """
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
    """The first entry of ``at`` whose ``best`` is at most the target.

    ``best`` never rises.
    """
    hit = np.flatnonzero(best <= target)
    return Reach(at=float(at[hit[0]] if len(hit) else at[-1]), reached=bool(len(hit)))


def restricted_mean(runs: Sequence[Reach], horizon: float) -> float:
    """Mean time to the target up to `horizon`, by the Kaplan-Meier curve.

    It is the area under the survival curve.

    Runs that stopped without reaching leave the risk set when they stopped (after runs that reached
    at the same time); beyond the last event the curve stays flat. Without censoring before the
    horizon this is the mean of ``min(time, horizon)``.

    Raises ValueError without runs.
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
