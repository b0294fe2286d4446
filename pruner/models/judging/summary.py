"""All metrics of an evaluation as a flat object, with chance."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pruner.models.judging import metrics
from pruner.models.judging.ceiling import noise_ceiling
from pruner.models.judging.chance import expected_ratio, random_ratio
from pruner.models.judging.metrics import ScoredTask
from pruner.models.judging.networks import ScoredNetwork, network_means, random_network_means

_RANDOM_SEED = 0


def draft_sizes(tasks: Sequence[ScoredTask]) -> dict[str, list[int]]:
    """Set sizes of Best-k: 512 programs, an eighth, a fiftieth a pool."""
    return {
        # 512 is the paper's draft of TenSet's 4,000 programs, an eighth; smaller pools need shares.
        "512": [min(512, task.num_programs) for task in tasks],
        "eighth": [max(1, task.num_programs // 8) for task in tasks],
        "2pct": [max(1, task.num_programs // 50) for task in tasks],
    }


def best_k_table(tasks: Sequence[ScoredTask], ks: Sequence[int] = (1, 5, 20)) -> dict[str, float]:
    """Best-k of the ranking for each set size: ``best<k>_at_<size>``."""
    return {
        f"best{k}_at_{name}": metrics.best_k(tasks, k, sizes)
        for k in ks
        for name, sizes in draft_sizes(tasks).items()
    }


def random_report(tasks: Sequence[ScoredTask], ks: Sequence[int] = (1, 5, 20)) -> dict[str, Any]:
    """Metrics of a random ranker: exact task means, ratios of sums by draws."""
    rng = np.random.default_rng(_RANDOM_SEED)
    ones = {k: [k] * len(tasks) for k in (1, 5)}
    table = {
        f"best{k}_at_{name}": random_ratio(tasks, sizes, k, rng=rng)
        for k in ks
        for name, sizes in draft_sizes(tasks).items()
    }
    return {
        "top1": random_ratio(tasks, ones[1], rng=rng),
        "top5": random_ratio(tasks, ones[5], rng=rng),
        "top1_task_mean": float(np.mean([expected_ratio(task, 1) for task in tasks])),
        "top5_task_mean": float(np.mean([expected_ratio(task, 5) for task in tasks])),
        # Exact: a random order without ties agrees on half of the pairs.
        "pairwise_accuracy": 0.5,
        "best_k": table,
    }


def ranking_metrics(tasks: Sequence[ScoredTask]) -> dict[str, float]:
    """The scalar metrics of a ranking, cheap enough for every validation epoch."""
    return {
        "top1": metrics.top_k(tasks, 1),
        "top5": metrics.top_k(tasks, 5),
        "top1_task_mean": metrics.top_k_task_mean(tasks, 1),
        "top5_task_mean": metrics.top_k_task_mean(tasks, 5),
        "pairwise_accuracy": metrics.pairwise_accuracy(tasks),
        "peak_score_1": metrics.peak_score(tasks, 1),
        "peak_score_5": metrics.peak_score(tasks, 5),
        "ndcg": metrics.ndcg(tasks),
    }


def task_rows(tasks: Sequence[ScoredTask]) -> list[dict[str, Any]]:
    """A row for each task: the parts of the sums, and chance.

    `chosen_latency_s` is that of the program ranked first, `random_latency_s` the mean of a random
    program; `random_top1` is the mean of best / latency of a random program. Where tasks share a
    name (a file that mixes targets), the words in which their targets differ are appended.
    """
    return [
        {
            "task": name,
            "num_programs": task.num_programs,
            "best_latency_s": task.best_s,
            "top1": metrics.top_k([task], 1),
            "top5": metrics.top_k([task], 5),
            "pairwise_accuracy": metrics.pairwise_accuracy([task]),
            "random_top1": float(np.mean(task.best_s / task.latency_s)),
            "chosen_latency_s": metrics.top_k_latency(task, 1),
            "random_latency_s": float(task.latency_s.mean()),
        }
        for task, name in zip(tasks, _names(tasks), strict=True)
    ]


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
    """All output of `evaluate`: metrics, Best-k table, random row, regrets.

    The noise ceiling is included where programs were timed twice, and means over networks where
    there are networks.
    """
    values: dict[str, Any] = dict(ranking_metrics(tasks))
    values["best_k"] = best_k_table(tasks)
    values["random"] = random_report(tasks)
    ceiling = noise_ceiling(tasks)
    if ceiling is not None:
        values["ceiling"] = ceiling
    for name in ("top1", "top5"):
        chance = values["random"][name]
        values[f"{name}_regret"] = metrics.regret_against_random(values[name], chance)
    if networks:
        values |= network_means(networks)
        values["random"] |= random_network_means(networks)
        values["num_networks"] = len(networks)
    values["num_tasks"] = len(tasks)
    values["num_programs"] = sum(task.num_programs for task in tasks)
    return values
