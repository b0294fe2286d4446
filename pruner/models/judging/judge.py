"""Judge a ranker on measured programs outside its training set: metrics, chance, networks.

Equation 2 of Pruner is of a network: i runs over its tasks and w_i is how often it calls task i.
TenSet's scripts compute the same, leave out tasks without records, and take the plain mean over the
networks. Networks are judged on each platform separately.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float

from pruner.data.networks import RecordedNetwork
from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskKey
from pruner.errors import DataError
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.assemble import Programs, programs_on_side, small_tasks_removed
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import Ranker

_RANDOM_SEED = 0
_KS, _BEST_KS = (1, 5), (1, 5, 20)
_OF_TIMING = ("top1", "top5", "top1_task_mean", "top5_task_mean", "pairwise_accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredNetwork:
    """The ranked tasks of a network, weighted by their number of calls.

    `num_tasks` and `num_calls` count the whole network, including tasks that have no records or are
    not judged.
    """

    name: str
    tasks: tuple[ScoredTask, ...]
    num_tasks: int
    num_calls: int

    def top_k(self, k: int) -> float:
        """Top-k of the network (equation 2)."""
        return metrics.top_k(self.tasks, k)

    def random_top_k(self, k: int) -> float:
        """Top-k of a random ranking, a mean of draws."""
        # Seeded anew: a network's chance must not depend on the networks before it.
        rng = np.random.default_rng(_RANDOM_SEED)
        return random_ratio(self.tasks, [k] * len(self.tasks), rng=rng)


def scored_networks(
    tasks: Sequence[ScoredTask], networks: Sequence[RecordedNetwork]
) -> list[ScoredNetwork]:
    """Every network on every platform that has a ranked task of it."""
    by_platform: dict[str, list[tuple[TaskKey, ScoredTask]]] = {}
    for task in tasks:
        if task.key is not None:
            by_platform.setdefault(task.key.platform, []).append((task.key, task))
    return [
        ScoredNetwork(
            name=f"{platform}/{network.name}",
            tasks=own,
            num_tasks=len(network.calls),
            num_calls=sum(network.calls.values()),
        )
        for platform, ranked in by_platform.items()
        for network in networks
        # A task may belong to several networks, with another weight in each.
        if (
            own := tuple(
                replace(task, weight=float(calls))
                for key, task in ranked
                if (calls := network.weight(key))
            )
        )
    ]


def network_means(networks: Sequence[ScoredNetwork], *, random: bool = False) -> dict[str, float]:
    """Mean Top-1 and Top-5 over the networks, perhaps of a random ranking."""
    of = ScoredNetwork.random_top_k if random else ScoredNetwork.top_k
    return {f"top{k}_network_mean": float(np.mean([of(n, k) for n in networks])) for k in _KS}


def draft_sizes(tasks: Sequence[ScoredTask]) -> dict[str, list[int]]:
    """Set sizes of Best-k: 512 programs, an eighth, a fiftieth a pool."""
    return {
        # 512 is the paper's draft of TenSet's 4,000 programs, an eighth; smaller pools need shares.
        "512": [min(512, task.num_programs) for task in tasks],
        "eighth": [max(1, task.num_programs // 8) for task in tasks],
        "2pct": [max(1, task.num_programs // 50) for task in tasks],
    }


def random_report(tasks: Sequence[ScoredTask], ks: Sequence[int] = _BEST_KS) -> dict[str, Any]:
    """Metrics of a random ranker: exact task means, ratios of sums by draws."""
    rng = np.random.default_rng(_RANDOM_SEED)
    table = {
        f"best{k}_at_{name}": random_ratio(tasks, sizes, k, rng=rng)
        for k in ks
        for name, sizes in draft_sizes(tasks).items()
    }
    return {
        **{f"top{k}": random_ratio(tasks, [k] * len(tasks), rng=rng) for k in _KS},
        **{f"top{k}_task_mean": float(np.mean([expected_ratio(t, k) for t in tasks])) for k in _KS},
        # Exact: a random order without ties agrees on half of the pairs.
        "pairwise_accuracy": 0.5,
        "best_k": table,
    }


def ranking_metrics(tasks: Sequence[ScoredTask]) -> dict[str, float]:
    """The scalar metrics of a ranking, cheap enough for every validation epoch."""
    return {
        **{f"top{k}": metrics.top_k(tasks, k) for k in _KS},
        **{f"top{k}_task_mean": metrics.top_k_task_mean(tasks, k) for k in _KS},
        "pairwise_accuracy": metrics.pairwise_accuracy(tasks),
        **{f"peak_score_{k}": metrics.peak_score(tasks, k) for k in _KS},
        "ndcg": metrics.ndcg(tasks),
    }


def noise_ceiling(tasks: Sequence[ScoredTask]) -> dict[str, Any] | None:
    """Top-1, Top-5 and pairwise accuracy of a second timing; None without any.

    Where every program was timed twice, minutes apart, the second timing is judged as a ranking
    against the first, and the other way round, and both are averaged. It is no bound: the errors of
    a timing count twice here, in the ranking and in its reference, so a model that averages noise
    away may pass it (docs/metrics.md). ``num_tasks``, ``num_programs``: those with two timings;
    ``spread``: median of the relative difference of the two.
    """
    found = [twice for task in tasks if (twice := _timed_twice(task)) is not None]
    if not found:
        return None
    sides = [[pair[0] for pair in found], [pair[1] for pair in found]]
    first, second = (np.concatenate([task.latency_s for task in side]) for side in sides)
    each = [ranking_metrics(side) for side in sides]
    return {
        **{name: float(np.mean([side[name] for side in each])) for name in _OF_TIMING},
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


def _names(tasks: Sequence[ScoredTask]) -> Iterator[str]:
    targets: list[set[str]] = [
        set(task.key.target.split()) if task.key else set() for task in tasks
    ]
    alike: dict[str, list[set[str]]] = {}
    for task, words in zip(tasks, targets, strict=True):
        alike.setdefault(task.name, []).append(words)
    for task, words in zip(tasks, targets, strict=True):
        # The words that not all targets of this name have.
        own = sorted(words.difference(words.intersection(*alike[task.name])))
        yield " ".join([task.name, *own])


def full_report(
    tasks: Sequence[ScoredTask], networks: Sequence[ScoredNetwork] = ()
) -> dict[str, Any]:
    """All output of `evaluate`: metrics, Best-k table, random row, regrets, networks."""
    values: dict[str, Any] = dict(ranking_metrics(tasks))
    values["best_k"] = {
        f"best{k}_at_{name}": metrics.best_k(tasks, k, sizes)
        for k in _BEST_KS
        for name, sizes in draft_sizes(tasks).items()
    }
    values["random"] = random_report(tasks)
    ceiling = noise_ceiling(tasks)
    if ceiling is not None:
        values["ceiling"] = ceiling
    for name in ("top1", "top5"):
        chance = values["random"][name]
        values[f"{name}_regret"] = metrics.regret_against_random(values[name], chance)
    if networks:
        values |= network_means(networks)
        values["random"] |= network_means(networks, random=True)
        values["num_networks"] = len(networks)
    values["num_tasks"] = len(tasks)
    values["num_programs"] = sum(task.num_programs for task in tasks)
    return values


def _log_factorial(x: np.ndarray) -> np.ndarray:
    return torch.lgamma(torch.from_numpy(x.astype(np.float64)) + 1.0).numpy()


def _log_choose(n: np.ndarray, k: int) -> np.ndarray:
    """log C(n, k) for k >= 0; minus infinity beyond n."""
    inside = k <= n
    n, k_of = np.where(inside, n, k), np.full(len(n), k)
    value = _log_factorial(n) - _log_factorial(k_of) - _log_factorial(n - k_of)
    return np.where(inside, value, -np.inf)


def rank_probabilities(n: int, kept: int, k: int) -> Float[np.ndarray, " rank"]:
    """Probability [rank] that the k-th best of `kept` random programs has that rank.

    It is the i-th best of n with probability ``C(i-1, k-1) C(n-i, m-k) / C(n, m)``, m = `kept`.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics over all tasks, chance for comparison, and the tasks.

    `networks` are the requested networks, as far as tasks of theirs are here. `metrics` are
    explained in ``docs/metrics.md``.
    """

    metrics: Mapping[str, Any]
    tasks: Sequence[ScoredTask]
    networks: Sequence[ScoredNetwork] = ()

    @classmethod
    def of(cls, tasks: Sequence[ScoredTask], networks: Sequence[RecordedNetwork] = ()) -> Self:
        """Judge scored tasks, and the networks that they belong to."""
        found = scored_networks(tasks, networks)
        return cls(metrics=full_report(tasks, found), tasks=tasks, networks=found)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each task: the parts of the sums, and chance.

        `chosen_latency_s` is that of the program ranked first, `random_latency_s` the mean of a
        random program; `random_top1` is the mean of best / latency of a random program. Where tasks
        share a name (a file that mixes targets), the words in which their targets differ are
        appended.
        """
        return [
            {
                "task": name,
                "num_programs": task.num_programs,
                "best_latency_s": task.best_s,
                **{f"top{k}": metrics.top_k([task], k) for k in _KS},
                "pairwise_accuracy": metrics.pairwise_accuracy([task]),
                "random_top1": float(np.mean(task.best_s / task.latency_s)),
                "chosen_latency_s": metrics.top_k_latency(task, 1),
                "random_latency_s": float(task.latency_s.mean()),
            }
            for task, name in zip(self.tasks, _names(self.tasks), strict=True)
        ]

    @property
    def network_rows(self) -> list[dict[str, Any]]:
        """A row for each network: Top-k, chance, and the judged share.

        `best_latency_s` and `chosen_latency_s` are sums over calls: with the best program of every
        task, and with the first-ranked program.
        """
        return [
            {
                "network": network.name,
                "tasks": len(network.tasks),
                "tasks_of_network": network.num_tasks,
                "calls": int(sum(task.weight for task in network.tasks)),
                "calls_of_network": network.num_calls,
                **{f"top{k}": network.top_k(k) for k in _KS},
                **{f"random_top{k}": network.random_top_k(k) for k in _KS},
                "best_latency_s": sum(task.weight * task.best_s for task in network.tasks),
                "chosen_latency_s": sum(
                    task.weight * metrics.top_k_latency(task, 1) for task in network.tasks
                ),
            }
            for network in self.networks
        ]


def tested_programs(programs: ProgramTable, split: TaskSplit, min_programs: int) -> Programs:
    """The test programs of large enough tasks; raises DataError where none is left."""
    test = programs_on_side(programs, split, "test")
    # Among very few programs any ranking finds a good one.
    index = small_tasks_removed(programs, test, min_programs)
    if not len(index):
        raise DataError(f"no test task has {min_programs} programs; lower min_programs")
    return index


def judge(
    ranker: Ranker, programs: ProgramTable, split: TaskSplit, *, min_programs: int = 1
) -> Report:
    """Rank the test programs of every task; raises DataError where none is left."""
    index = tested_programs(programs, split, min_programs)
    return Report.of(ranker.score_tasks(programs, index), split.networks)
