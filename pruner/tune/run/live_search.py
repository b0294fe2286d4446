"""Searches of one live task: propose candidates with schedules, take in what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.errors import DataError
from pruner.search.explorer import NoneFound
from pruner.search.failures import FailureModel
from pruner.search.policy import Measurements, Policy, State
from pruner.tune.measure.measurer import REFUSED, Candidate, Outcome
from pruner.tune.run.learning import LiveLearner
from pruner.tune.spaces.union import UnionSpace

_ATTEMPTS = 8  # proposals of which TVM refuses every program before a task is given up


class LiveSearch(Protocol):
    """What the tuning loop drives.

    ``refused`` counts proposals that TVM would not instantiate; ``savable``: its state is all that
    it knows, so that a resumed run goes on exactly, and batches may overlap.
    """

    refused: int
    savable: bool

    def propose(self, num: int) -> list[Candidate]:
        """At most `num` programs that were not proposed before; none when nothing is left."""

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """Take in a batch."""

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """A candidate of an earlier start of the run, from what the journal says of it."""

    def state(self) -> State:
        """What a resumed run needs of it."""

    def load_state(self, state: State) -> None:
        """Take back, at its beginning, what `state` returned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Results:
    """What came of programs int64 [N, d]: seconds [N], and whether that tells of the program."""

    rows: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    tells: NDArray[np.bool_]

    @staticmethod
    def none(num_slots: int) -> _Results:
        rows = np.zeros((0, num_slots), np.int64)
        return _Results(rows=rows, latency_s=np.zeros(0), tells=np.zeros(0, bool))

    @staticmethod
    def joined(parts: Sequence[_Results]) -> _Results:
        return _Results(
            rows=np.concatenate([part.rows for part in parts]),
            latency_s=np.concatenate([part.latency_s for part in parts]),
            tells=np.concatenate([part.tells for part in parts]),
        )


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
        self.space, self._policy, self._failure_model = space, policy, failure_model
        self._learner = learner
        self._waiting: list[int] = []  # keys of proposals without result
        self._told = [_Results.none(space.num_slots)]
        self._first = np.zeros((0, space.num_slots), np.int64)
        self.refused = 0
        self.savable = True

    def begin_with(self, rows: NDArray[np.int64]) -> None:
        """Put programs int64 [N, d] before the policy's own in the first proposal, unless anything
        is known of the task by then."""
        self._first = rows

    def propose(self, num: int) -> list[Candidate]:
        """See :class:`LiveSearch`; what TVM refuses counts as a failure for the policy."""
        found = self._proposed(num)
        self.space.forget()  # other tasks may come first, and there may be hundreds
        return found

    def _proposed(self, num: int) -> list[Candidate]:
        for _ in range(_ATTEMPTS):
            first = self._first[: 0 if self._begun else num]
            rows = np.concatenate([first, self._of_policy(num - len(first), first)])
            if not len(rows):
                return []
            schedules = self.space.instantiate(rows)
            accepted = np.array([schedule is not None for schedule in schedules])
            if not accepted.all():
                self.refused += int((~accepted).sum())
                self._tell(rows[~accepted], [REFUSED] * int((~accepted).sum()))
            if accepted.any():
                self._waiting += self.space.keys(rows[accepted]).tolist()
                pairs = zip(rows, schedules, strict=True)
                return [self._candidate(row, made) for row, made in pairs if made is not None]
        return []

    @property
    def _begun(self) -> bool:
        """Whether any program was proposed, or is known."""
        return bool(self._waiting) or any(len(told.rows) for told in self._told)

    def _of_policy(self, num: int, first: NDArray[np.int64]) -> NDArray[np.int64]:
        """At most `num` programs of the policy beside `first`; none in a small space, all of it
        measured."""
        if not num:
            return first[:0]
        pending = np.array([*self._waiting, *self.space.keys(first).tolist()], np.int64)
        try:
            return self._policy.propose(num, pending)
        except NoneFound:
            if self._begun or len(first):
                return first[:0]
            raise

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """See :class:`LiveSearch`."""
        if candidates:
            rows = np.array([self._row(candidate) for candidate in candidates])
            done = set(self.space.keys(rows).tolist())
            self._waiting = [key for key in self._waiting if key not in done]
            self._tell(rows, outcomes)

    def know(self, rows: NDArray[np.int64], latency_s: NDArray[np.float64]) -> None:
        """Take in programs that another run measured; they are not proposed again."""
        self._tell(rows, [Outcome(costs_s=(float(value),)) for value in latency_s])

    def state(self) -> State:
        """See :class:`LiveSearch`."""
        self._told = [_Results.joined(self._told)]
        (told,) = self._told
        return {
            "rows": told.rows,
            "latency_s": told.latency_s,
            "tells": told.tells,
            "waiting": list(self._waiting),
            "refused": self.refused,
            "policy": self._policy.state(),
            "learner": None if self._learner is None else self._learner.state(),
        }

    def load_state(self, state: State) -> None:
        """See :class:`LiveSearch`."""
        self._take_in(
            _Results(rows=state["rows"], latency_s=state["latency_s"], tells=state["tells"])
        )
        self._waiting, self.refused = list(state["waiting"]), state["refused"]
        self._policy.load_state(state["policy"])
        if self._learner is not None:
            self._learner.load_state(state["learner"])

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """See :class:`LiveSearch`."""
        row = np.zeros(self.space.num_slots, np.int64)
        row[0], row[1 : 1 + len(decisions)] = space, decisions
        (schedule,) = self.space.instantiate(row[None])
        return self._candidate(row, schedule)

    def _tell(self, rows: NDArray[np.int64], outcomes: Sequence[Outcome]) -> None:
        latency_s = np.array([outcome.latency_s for outcome in outcomes])
        tells = np.array([outcome.tells_of_program for outcome in outcomes])
        self._take_in(_Results(rows=rows, latency_s=latency_s, tells=tells))

    def _take_in(self, told: _Results) -> None:
        self._told.append(told)
        self._policy.observe(Measurements(decisions=told.rows, latency_s=told.latency_s))
        if self._learner is not None:
            self._learner.observe(told.rows, np.where(told.tells, told.latency_s, np.nan))
        failed = ~np.isfinite(told.latency_s[told.tells])
        self._failure_model.observe(told.rows[told.tells], failed)

    def _candidate(self, row: NDArray[np.int64], schedule: Any) -> Candidate:
        size = self.space.spaces[int(row[0])].num_slots
        return Candidate(space=int(row[0]), decisions=row[1 : 1 + size], schedule=schedule)

    def _row(self, candidate: Candidate) -> NDArray[np.int64]:
        """Raises `DataError` for a program that is of none of the spaces."""
        spaces, size = self.space.spaces, len(candidate.decisions)
        if candidate.space not in range(len(spaces)) or size != spaces[candidate.space].num_slots:
            raise DataError(
                f"space {candidate.space} with {size} decisions does not belong to this task: "
                "another version measured it, or it is damaged; a new run with warm_start=[RUN] "
                "uses its measurements"
            )
        row = np.zeros(self.space.num_slots, np.int64)
        row[0], row[1 : 1 + len(candidate.decisions)] = candidate.space, candidate.decisions
        return row
