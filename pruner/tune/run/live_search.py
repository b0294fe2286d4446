"""Searches of one live task: propose candidates with schedules, take in what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.search.explorer import NoneFound
from pruner.search.failures import FailureModel
from pruner.search.policy import Measurements, Policy
from pruner.tune.measure.measurer import REFUSED, Candidate, Outcome
from pruner.tune.run.learning import LiveLearner
from pruner.tune.spaces.union import UnionSpace

_ATTEMPTS = 8  # proposals of which TVM refuses every program before a task is given up


class LiveSearch(Protocol):
    """What the tuning loop drives.

    ``refused`` counts proposals that TVM would not instantiate; ``savable``: its state can be
    pickled, so that a resumed run goes on exactly, and batches may overlap.
    """

    refused: int
    savable: bool

    def propose(self, num: int) -> list[Candidate]:
        """At most `num` programs that were not proposed before; none when nothing is left."""

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """Take in a batch."""

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """A candidate of an earlier start of the run, from what the journal says of it."""


class DecisionSearch:
    """A policy of :mod:`pruner.search` over the union of a task's design spaces."""

    def __init__(
        self,
        space: UnionSpace,
        policy: Policy,
        failure_model: FailureModel,
        learner: LiveLearner | None = None,
    ) -> None:
        """`failure_model` is told of every failure; the policy should ask it. `learner` is told of
        every result."""
        self._space, self._policy, self._failure_model = space, policy, failure_model
        self._learner = learner
        self._waiting: list[int] = []  # keys of proposals without result
        self._told = 0  # programs with results
        self.refused = 0
        self.savable = True

    def propose(self, num: int) -> list[Candidate]:
        """See :class:`LiveSearch`; what TVM refuses counts as a failure for the policy."""
        found = self._proposed(num)
        self._space.forget()  # other tasks may come first, and there may be hundreds
        return found

    def _proposed(self, num: int) -> list[Candidate]:
        pending = np.array(self._waiting, np.int64)
        for _ in range(_ATTEMPTS):
            try:
                rows = self._policy.propose(num, pending)
            except NoneFound:
                if not self._told and not self._waiting:
                    raise
                return []  # a small space, all of it measured
            if not len(rows):
                return []
            schedules = self._space.instantiate(rows)
            accepted = np.array([schedule is not None for schedule in schedules])
            if not accepted.all():
                self.refused += int((~accepted).sum())
                self._tell(rows[~accepted], [REFUSED] * int((~accepted).sum()))
            if accepted.any():
                self._waiting += self._space.keys(rows[accepted]).tolist()
                pairs = zip(rows, schedules, strict=True)
                return [self._candidate(row, made) for row, made in pairs if made is not None]
        return []

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """See :class:`LiveSearch`."""
        if candidates:
            rows = np.array([self._row(candidate) for candidate in candidates])
            done = set(self._space.keys(rows).tolist())
            self._waiting = [key for key in self._waiting if key not in done]
            self._tell(rows, outcomes)

    def know(self, rows: NDArray[np.int64], latency_s: NDArray[np.float64]) -> None:
        """Take in programs that another run measured; they are not proposed again."""
        self._tell(rows, [Outcome(costs_s=(float(value),)) for value in latency_s])

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """See :class:`LiveSearch`."""
        row = np.zeros(self._space.num_slots, np.int64)
        row[0], row[1 : 1 + len(decisions)] = space, decisions
        (schedule,) = self._space.instantiate(row[None])
        return self._candidate(row, schedule)

    def _tell(self, rows: NDArray[np.int64], outcomes: Sequence[Outcome]) -> None:
        self._told += len(outcomes)
        latency_s = np.array([outcome.latency_s for outcome in outcomes])
        self._policy.observe(Measurements(decisions=rows, latency_s=latency_s))
        if self._learner is not None:
            self._learner.observe(rows, latency_s)
        told = np.array([outcome.tells_of_program for outcome in outcomes])
        self._failure_model.observe(rows[told], ~np.isfinite(latency_s[told]))

    def _candidate(self, row: NDArray[np.int64], schedule: Any) -> Candidate:
        size = self._space.spaces[int(row[0])].num_slots
        return Candidate(space=int(row[0]), decisions=row[1 : 1 + size], schedule=schedule)

    def _row(self, candidate: Candidate) -> NDArray[np.int64]:
        row = np.zeros(self._space.num_slots, np.int64)
        row[0], row[1 : 1 + len(candidate.decisions)] = candidate.space, candidate.decisions
        return row
