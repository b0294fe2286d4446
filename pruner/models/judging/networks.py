"""Top-k of whole networks, the number of TenSet and Pruner.

Equation 2 of Pruner is of one network: i runs over its tasks and w_i is how often it calls task i.
TenSet's scripts compute the same, leave out tasks without records, and take the plain mean over the
networks. Networks are judged on each platform separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pruner.data.networks import RecordedNetwork
from pruner.data.tasks import TaskKey
from pruner.models.judging import metrics
from pruner.models.judging.chance import random_ratio
from pruner.models.judging.metrics import ScoredTask

_KS = (1, 5)
_RANDOM_SEED = 0


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


def network_means(networks: Sequence[ScoredNetwork]) -> dict[str, float]:
    """Mean Top-1 and Top-5 over the networks."""
    return {
        f"top{k}_network_mean": float(np.mean([network.top_k(k) for network in networks]))
        for k in _KS
    }


def random_network_means(networks: Sequence[ScoredNetwork]) -> dict[str, float]:
    """Mean Top-1 and Top-5 of a random ranking over the networks."""
    return {
        f"top{k}_network_mean": float(np.mean([network.random_top_k(k) for network in networks]))
        for k in _KS
    }


def network_rows(networks: Sequence[ScoredNetwork]) -> list[dict[str, Any]]:
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
        for network in networks
    ]
