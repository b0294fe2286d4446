"""Metrics of a ranking; higher is better except for `regret`.

Definitions: Top-k is equation 2 and Best-k equation 3 of Pruner (ASPLOS'25); pairwise accuracy and
peak score are those of TenSet. A `score` ranks programs of one task, higher = predicted faster.
Equal scores are ordered by a fixed pseudo-random permutation: tuning logs get better towards their
end, so log order would make a constant score look informed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pruner.data.tasks import TaskKey

_TIE_SEED = 20250330
_BLOCK = 2048  # rows of the pair matrix held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTask:
    """Measured latencies and predicted scores of the programs of one task.

    `weight` is how often the task occurs in its network (1 where no network is given). Networks
    find the task by `key`. `timed_s` [program, 2] are two timings of each program minutes apart,
    NaN where it has none. Raises ValueError for an empty task, unequal lengths, non-positive
    latencies or NaN scores.
    """

    name: str
    latency_s: Float[np.ndarray, " program"]
    score: Float[np.ndarray, " score"]  # as many as programs: refused below, in words
    weight: float = 1.0
    timed_s: Float[np.ndarray, "program 2"] | None = None
    key: TaskKey | None = None

    def __post_init__(self) -> None:
        if not len(self.latency_s):
            raise ValueError(f"task {self.name}: no program to rank")
        if len(self.latency_s) != len(self.score):
            raise ValueError(
                f"task {self.name}: {len(self.latency_s)} latencies, {len(self.score)} scores"
            )
        if not np.all(self.latency_s > 0) or np.isnan(self.score).any():
            raise ValueError(f"task {self.name}: latencies must be positive, scores numbers")

    @property
    def num_programs(self) -> int:
        """Number of ranked programs."""
        return len(self.latency_s)

    @property
    def best_s(self) -> float:
        """Best measured latency."""
        return float(self.latency_s.min())


def _shuffled(num: int) -> Int[np.ndarray, " program"]:
    return np.random.default_rng(_TIE_SEED).permutation(num)


def ranking(score: Float[np.ndarray, " program"]) -> Int[np.ndarray, " program"]:
    """Indices from the best predicted; ties in fixed pseudo-random order."""
    shuffled = _shuffled(len(score))
    return shuffled[np.argsort(-score[shuffled], kind="stable")]


def _ratio_of_sums(tasks: Sequence[ScoredTask], chosen_s: Sequence[float]) -> float:
    best = sum(task.weight * task.best_s for task in tasks)
    return best / sum(task.weight * s for task, s in zip(tasks, chosen_s, strict=True))


def top_k_latency(task: ScoredTask, k: int) -> float:
    """Best latency among the k best-predicted programs, in seconds."""
    return float(task.latency_s[ranking(task.score)[:k]].min())


def top_k(tasks: Sequence[ScoredTask], k: int) -> float:
    """Top-k, equation 2: ``sum_i w_i best_i / sum_i w_i (best of the k best-predicted)``."""
    return _ratio_of_sums(tasks, [top_k_latency(task, k) for task in tasks])


def top_k_task_mean(tasks: Sequence[ScoredTask], k: int) -> float:
    """Mean over tasks of best / best-among-k; slow tasks do not dominate."""
    return float(np.mean([task.best_s / top_k_latency(task, k) for task in tasks]))


def best_k_latency(task: ScoredTask, k: int, size: int) -> float:
    """k-th best latency (s) of the `size` best-drafted programs, or their worst."""
    kept = np.sort(task.latency_s[ranking(task.score)[:size]])
    return float(kept[min(k, len(kept)) - 1])


def best_k(tasks: Sequence[ScoredTask], k: int, sizes: Sequence[int]) -> float:
    """Best-k, equation 3: ``sum_i w_i best_i / sum_i w_i (k-th best of sizes[i])``."""
    pairs = zip(tasks, sizes, strict=True)
    return _ratio_of_sums(tasks, [best_k_latency(task, k, size) for task, size in pairs])


def pair_agreement(task: ScoredTask) -> float:
    """Share of pairs whose order agrees; a tie is not greater (TenSet).

    The bit is ``score_i > score_j`` against ``latency_i < latency_j``, i before j in the fixed
    order of ties; 1.0 for a single program.
    """
    n, agree = task.num_programs, 0
    if n < 2:
        return 1.0
    order = _shuffled(n)
    score, latency_s = task.score[order], task.latency_s[order]
    # Blocks of rows: all pairs of a task of 20,000 programs at once would take gigabytes.
    for start in range(0, n, _BLOCK):
        rows = slice(start, min(start + _BLOCK, n))
        predicted = score[rows, None] > score[None, start:]
        measured = latency_s[rows, None] < latency_s[None, start:]
        agree += int(np.triu(predicted == measured, k=1).sum())
    return agree / (n * (n - 1) / 2)


def pairwise_accuracy(tasks: Sequence[ScoredTask]) -> float:
    """Pair agreement averaged over tasks, weighted by their programs (TenSet)."""
    return _program_weighted(tasks, [pair_agreement(task) for task in tasks])


def peak_score(tasks: Sequence[ScoredTask], k: int) -> float:
    """Peak score: mean best label of the top 1 to k.

    Each over the best label of all; tasks weigh by their programs (TenSet).
    """
    values = []
    for task in tasks:
        first = task.latency_s[ranking(task.score)[:k]]
        running = task.best_s / np.minimum.accumulate(first)
        # A task with fewer than k programs has found its best by then.
        values.append((running.sum() + (k - len(running))) / k)
    return _program_weighted(tasks, values)


def ndcg(tasks: Sequence[ScoredTask]) -> float:
    """Normalised discounted gain, gain ``2^(best/latency) - 1``; mean over tasks."""
    values = []
    for task in tasks:
        # best / latency replaces the grades of relevance, which latencies do not have.
        gain = 2.0 ** (task.best_s / task.latency_s) - 1.0
        discount = 1.0 / np.log2(2.0 + np.arange(task.num_programs))
        ideal = np.sort(gain)[::-1] @ discount
        values.append(gain[ranking(task.score)] @ discount / ideal)
    return float(np.mean(values))


def regret_against_random(value: float, random_value: float) -> float:
    """``(1 - ours) / (1 - random)``; 0 is perfect, 1 chance."""
    return (1.0 - value) / max(1.0 - random_value, 1e-12)


def _program_weighted(tasks: Sequence[ScoredTask], values: Sequence[float]) -> float:
    return float(np.average(values, weights=[task.num_programs for task in tasks]))
