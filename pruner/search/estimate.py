"""Estimate a network's latency while its tasks are tuned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class WeightedTask(Protocol):
    """A task with calls, operations and best latency (infinite without program)."""

    @property
    def weight(self) -> float:
        """Number of calls."""

    @property
    def flops(self) -> float:
        """Operations of a call."""

    @property
    def latest_s(self) -> float:
        """Seconds of its best program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Latency of all tasks together (seconds): ``sum weight * best``.

    A task without a measured program counts with the mean speed (operations a second) of the
    measured tasks. ``measured_share`` of the arithmetic has a measured program.
    """

    latency_s: float
    measured_share: float

    @staticmethod
    def of(tasks: Iterable[WeightedTask]) -> Estimate:
        """Sum the tasks' present latencies; infinite while none is measured."""
        total = known = known_s = 0.0
        missing = False
        for task in tasks:
            work = task.weight * task.flops
            total += work
            if task.latest_s == float("inf"):
                missing = True
                continue
            known += work
            known_s += task.weight * task.latest_s
        if not missing:
            return Estimate(latency_s=known_s, measured_share=1.0)
        # Scaling by the share of arithmetic is the same as giving the missing tasks the mean speed.
        share = known / total if total else 0.0
        return Estimate(latency_s=known_s / share if share else float("inf"), measured_share=share)


def has_settled(latency_s: Sequence[float], rounds: int | None, tolerance: float) -> bool:
    """Whether the last `rounds` changed the estimate by less than `tolerance`.

    `tolerance` is a share of the earlier estimate.

    `latency_s` are the estimates after every round since each task was tried; `rounds` None: it
    never counts as settled.
    """
    if rounds is None or len(latency_s) <= rounds:
        return False
    before_s = latency_s[-1 - rounds]
    return abs(before_s - latency_s[-1]) < tolerance * before_s
