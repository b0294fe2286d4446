"""Metrics of a random ranker: exact order statistics, and mean draws.

Keeping m of n programs at random, the k-th best of the m is the i-th best of all with probability
``C(i-1, k-1) C(n-i, m-k) / C(n, m)``; Top-k is the case of the best (k = 1) of m.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from pruner.models.judging.metrics import ScoredTask


def _log_factorial(x: np.ndarray) -> np.ndarray:
    return torch.lgamma(torch.from_numpy(x.astype(np.float64)) + 1.0).numpy()


def _log_choose(n: np.ndarray, k: int) -> np.ndarray:
    """log C(n, k) for k >= 0; minus infinity beyond n."""
    inside = k <= n
    n, k_of = np.where(inside, n, k), np.full(len(n), k)
    value = _log_factorial(n) - _log_factorial(k_of) - _log_factorial(n - k_of)
    return np.where(inside, value, -np.inf)


def rank_probabilities(n: int, kept: int, k: int) -> Float[np.ndarray, " rank"]:
    """Probability [rank] that the k-th best of `kept` random programs has that rank."""
    i = np.arange(1, n + 1)
    log_ways = _log_choose(i - 1, k - 1) + _log_choose(n - i, kept - k)
    # C(n, m) overflows for n = 4,000; its logarithm is the same for all ranks and cancels in the
    # sum.
    probability = np.exp(log_ways - log_ways.max())
    return probability / probability.sum()


def expected_latency(task: ScoredTask, kept: int, k: int = 1) -> float:
    """Exact mean latency (seconds) of the k-th best of `kept` random programs."""
    kept = min(kept, task.num_programs)
    probability = rank_probabilities(task.num_programs, kept, min(k, kept))
    return float(probability @ np.sort(task.latency_s))


def expected_ratio(task: ScoredTask, kept: int) -> float:
    """Exact mean of best / best latency among `kept` random programs."""
    kept = min(kept, task.num_programs)
    probability = rank_probabilities(task.num_programs, kept, 1)
    return float(probability @ (task.best_s / np.sort(task.latency_s)))


def unreached(num: int, good: int, trials: int) -> Float[np.ndarray, " trial"]:
    """Probability [0 .. trials] that so many random programs miss all `good` programs.

    `num` programs in all, drawn without repetition. The sum of all but the last entry is the mean
    number of trials up to the first good program, at most `trials`.
    """
    drawn = np.arange(trials)
    missed = np.clip(num - good - drawn, 0, None) / np.maximum(num - drawn, 1)
    return np.concatenate([[1.0], np.cumprod(missed)])


def random_ratio(
    tasks: Sequence[ScoredTask],
    kept: Sequence[int],
    k: int = 1,
    *,
    rng: np.random.Generator,
    repeats: int = 1000,
) -> float:
    """Mean ratio of sums (Top-k, Best-k) when `kept` programs are random.

    Draws the order statistic itself from its exact distribution, so a repeat costs a single number.
    """
    chosen = np.zeros(repeats)
    for task, size in zip(tasks, kept, strict=True):
        size = min(size, task.num_programs)
        probability = rank_probabilities(task.num_programs, size, min(k, size))
        ranks = rng.choice(task.num_programs, size=repeats, p=probability)
        # The mean of a ratio of sums has no closed form, unlike the means of one task.
        chosen += task.weight * np.sort(task.latency_s)[ranks]
    best = sum(task.weight * task.best_s for task in tasks)
    return float(np.mean(best / chosen))
