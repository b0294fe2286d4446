"""The search of one task, live, recorded or in TVM: a policy, its history, what it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.errors import DataError
from pruner.search.explorer import NoneFound, ScoreFunction
from pruner.search.failures import AvoidFailures, FailureModel
from pruner.search.history import Candidate, History
from pruner.search.policy import Policy, PolicySettings, State
from pruner.search.space import SearchSpace

_ATTEMPTS = 8  # proposals of which TVM refuses every program before a task is given up


class Outcome(Protocol):
    """What came of a candidate."""

    @property
    def latency_s(self) -> float:
        """Seconds of a run; infinite for a failure."""

    @property
    def tells_of_program(self) -> bool:
        """False where no device or worker ran it."""


class Search(Protocol):
    """What the tuning loop drives.

    ``refused`` counts proposals that TVM would not instantiate; ``savable``: its state is all that
    it knows, so that a resumed run goes on exactly, and batches may overlap.
    """

    refused: int
    savable: bool

    def propose(self, num: int) -> list[Candidate]:
        """At most `num` programs that were not proposed before; none when nothing is left."""

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Any]) -> None:
        """Take in a batch."""

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """A candidate of an earlier start of the run, from what the journal says of it."""

    def state(self) -> State:
        """What a resumed run needs of it."""

    def load_state(self, state: State) -> None:
        """Take back, at its beginning, what `state` returned."""


class TaskSpace(SearchSpace, Protocol):
    """A space whose column 0 says which design space a program is of.

    ``widths``: the number of decisions of a program of each design space. ``can_draft``: a draft
    tells programs apart. ``affordable``: programs a generation where each takes milliseconds; None:
    any number.
    """

    widths: list[int]
    can_draft: bool
    affordable: int | None

    def instantiate(self, decisions: Decisions) -> Sequence[Any | None]:
        """The schedules of all rows; None where TVM refuses."""

    def forget(self) -> None:
        """Let go of what was kept for one proposal."""


class TaskLearner(Protocol):
    """A learner (:data:`pruner.search.policy.Learner`) that is told of every result."""

    def __call__(self, history: History) -> ScoreFunction | None:
        """A score function from what was measured; None: nothing to learn from yet."""

    def note(self, history: History) -> None:
        """Have the next fit take in what is new of the history."""

    def state(self) -> State:
        """What it needs besides the history to go on exactly."""

    def load_state(self, state: State) -> None:
        """Take back what `state` returned."""


class DecisionSearch:
    """A policy of :mod:`pruner.search` over the design spaces of a task."""

    def __init__(
        self,
        space: TaskSpace,
        policy: Policy,
        history: History,
        learner: TaskLearner | None = None,
    ) -> None:
        """`history` is empty, and what a failure model of the policy reads."""
        self.space, self._policy, self.history = space, policy, history
        self._learner = learner
        self._waiting: list[int] = []  # keys of proposals without result
        self._first = np.zeros((0, space.num_slots), np.int64)
        self.refused = 0
        self.savable = True

    def begin_with(self, rows: NDArray[np.int64]) -> None:
        """Put programs int64 [N, d] before the policy's own in the first proposal, unless anything
        is known of the task by then."""
        self._first = rows

    def propose(self, num: int) -> list[Candidate]:
        """See :class:`Search`; what TVM refuses counts as a failure for the policy."""
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
            refused = np.array([schedule is None for schedule in schedules])
            if refused.any():
                self.refused += int(refused.sum())
                self.know(rows[refused], np.full(int(refused.sum()), np.inf))
            if not refused.all():
                self._waiting += self.space.keys(rows[~refused]).tolist()
                pairs = zip(rows, schedules, strict=True)
                return [self._candidate(row, made) for row, made in pairs if made is not None]
        return []

    @property
    def _begun(self) -> bool:
        """Whether any program was proposed, or is known."""
        return bool(self._waiting) or len(self.history) > 0

    def _of_policy(self, num: int, first: NDArray[np.int64]) -> NDArray[np.int64]:
        """At most `num` programs of the policy beside `first`; none in a small space, all of it
        measured."""
        if not num:
            return first[:0]
        pending = np.array([*self._waiting, *self.space.keys(first).tolist()], np.int64)
        try:
            return self._policy.propose(num, self.history, pending)
        except NoneFound:
            if self._begun or len(first):
                return first[:0]
            raise

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """See :class:`Search`."""
        if candidates:
            rows = np.array([self._row(candidate) for candidate in candidates])
            done = set(self.space.keys(rows).tolist())
            self._waiting = [key for key in self._waiting if key not in done]
            latency_s = np.array([outcome.latency_s for outcome in outcomes])
            self.know(rows, latency_s, np.array([one.tells_of_program for one in outcomes]))

    def know(
        self,
        rows: NDArray[np.int64],
        latency_s: NDArray[np.float64],
        tried: NDArray[np.bool_] | None = None,
    ) -> None:
        """Take in results, of this run or of an earlier one; nothing of them is proposed again."""
        self.history.add(rows, latency_s, tried)
        if self._learner is not None:
            self._learner.note(self.history)

    def state(self) -> State:
        """See :class:`Search`."""
        return {
            "rows": self.history.decisions,
            "latency_s": self.history.latency_s,
            "tells": self.history.tried,
            "waiting": list(self._waiting),
            "refused": self.refused,
            "policy": self._policy.state(),
            "learner": None if self._learner is None else self._learner.state(),
        }

    def load_state(self, state: State) -> None:
        """See :class:`Search`."""
        self.know(state["rows"], state["latency_s"], state["tells"])
        self._waiting, self.refused = list(state["waiting"]), state["refused"]
        self._policy.load_state(state["policy"])
        if self._learner is not None:
            self._learner.load_state(state["learner"])

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """See :class:`Search`."""
        row = np.zeros(self.space.num_slots, np.int64)
        row[0], row[1 : 1 + len(decisions)] = space, decisions
        (schedule,) = self.space.instantiate(row[None])
        return self._candidate(row, schedule)

    def _candidate(self, row: NDArray[np.int64], schedule: Any) -> Candidate:
        size = self.space.widths[int(row[0])]
        return Candidate(space=int(row[0]), decisions=row[1 : 1 + size], schedule=schedule)

    def _row(self, candidate: Candidate) -> NDArray[np.int64]:
        """Raises `DataError` for a program that is of none of the spaces."""
        widths, size = self.space.widths, len(candidate.decisions)
        if candidate.space not in range(len(widths)) or size != widths[candidate.space]:
            raise DataError(
                f"space {candidate.space} with {size} decisions does not belong to this task: "
                "another version measured it, or it is damaged; a new run with warm_start=[RUN] "
                "uses its measurements"
            )
        row = np.zeros(self.space.num_slots, np.int64)
        row[0], row[1 : 1 + len(candidate.decisions)] = candidate.space, candidate.decisions
        return row


def decision_search(
    space: TaskSpace,
    policy: PolicySettings,
    draft: ScoreFunction | None,
    learner: TaskLearner | None,
    rng: np.random.Generator,
) -> DecisionSearch:
    """Make the search of a task, which learns from failures, too.

    `draft` is minus infinity for what must not be proposed; None: everything may be.
    """
    history = History(space)
    if space.affordable is not None:
        policy = policy.limited(space.affordable, can_draft=space.can_draft)
    if draft is not None:
        draft = AvoidFailures(draft, FailureModel(history))
    return DecisionSearch(space, policy.make(space, draft, learner, rng), history, learner)
