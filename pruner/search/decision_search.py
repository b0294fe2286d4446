"""Search one task by a policy: live, on records, or inside TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pruner.arrays import Decisions, Floats, Ints, Mask
from pruner.errors import DataError
from pruner.search.explorer import NoneFound, ScoreFunction
from pruner.search.failures import FailureModel
from pruner.search.policy import Policy, PolicySettings, State
from pruner.search.space import Candidate, History, SearchSpace

_ATTEMPTS = 8  # proposals that TVM refuses completely before a task is given up


class Search(Protocol):
    """The search of one task, as the tuning loop drives it.

    ``refused`` counts proposals that TVM would not instantiate.
    """

    refused: int

    def propose(self, num: int) -> list[Candidate]:
        """Propose at most `num` new programs; none when the space is exhausted."""

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Any]) -> None:
        """Add outcomes: ``latency_s`` (infinite: failed), ``concerns_program`` (it was tried)."""

    def restore(self, space: int, decisions: Ints) -> Candidate:
        """Rebuild a candidate from the space and decisions in the journal."""

    def state(self) -> State:
        """The state that a resumed run restores."""

    def load_state(self, state: State) -> None:
        """Restore `state`, before the first proposal."""


class TaskSpace(SearchSpace, Protocol):
    """A space whose column 0 is the number of the design space.

    ``widths``: decisions of each design space; ``can_draft``: the draft score differs between
    programs; ``affordable``: programs a generation where each takes milliseconds; None: any number.
    """

    widths: list[int]
    can_draft: bool
    affordable: int | None

    def instantiate(self, decisions: Decisions) -> Sequence[Any | None]:
        """The schedules of all rows; None where TVM refuses."""

    def clear_cache(self) -> None:
        """Clear the caches of one proposal."""


class TaskLearner(Protocol):
    """A learner (:data:`pruner.search.policy.Learner`) that receives every result."""

    def __call__(self, history: History) -> ScoreFunction | None:
        """Make a score function from the history; None without training data."""

    def note(self, history: History) -> None:
        """Mark the new results of the history for the next fit."""

    def state(self) -> State:
        """The state, besides the history, that a resumed run restores."""

    def load_state(self, state: State) -> None:
        """Restore `state`."""


class DecisionSearch:
    """Drive a policy of :mod:`pruner.search` over the design spaces of a task."""

    def __init__(
        self,
        space: TaskSpace,
        policy: Policy,
        history: History,
        learner: TaskLearner | None = None,
    ) -> None:
        """`history` is empty; the policy's failure model reads the same object."""
        self.space, self._policy, self.history = space, policy, history
        self._learner = learner
        self._waiting: list[int] = []  # keys of proposals without result
        self._first = np.zeros((0, space.num_slots), np.int64)
        self.refused = 0

    def begin_with(self, rows: Ints) -> None:
        """Begin the first proposal with programs int64 [N, d], if nothing was proposed."""
        self._first = rows

    def propose(self, num: int) -> list[Candidate]:
        """See :class:`Search`; a program that TVM refuses counts as a failure."""
        found = self._proposed(num)
        self.space.clear_cache()  # memory: before its next proposal hundreds of other tasks may run
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
                # Recorded as failures: the model learns refusals, and no proposal repeats them.
                self.refused += int(refused.sum())
                self.know(rows[refused], np.full(int(refused.sum()), np.inf))
            if not refused.all():
                self._waiting += self.space.keys(rows[~refused]).tolist()
                pairs = zip(rows, schedules, strict=True)
                return [self._candidate(row, made) for row, made in pairs if made is not None]
        return []

    @property
    def _begun(self) -> bool:
        return bool(self._waiting) or len(self.history) > 0

    def _of_policy(self, num: int, first: Ints) -> Ints:
        """At most `num` programs of the policy besides `first`; empty at a space's end."""
        if not num:
            return first[:0]
        # With a lag, the previous proposal has no results yet, but must not be repeated.
        pending = np.array([*self._waiting, *self.space.keys(first).tolist()], np.int64)
        try:
            return self._policy.propose(num, self.history, pending)
        except NoneFound:
            # At the start nothing is excluded: no legal program is then an error of the space.
            if self._begun or len(first):
                return first[:0]
            raise

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Any]) -> None:
        """See :class:`Search`."""
        if candidates:
            rows = np.array([self._row(candidate) for candidate in candidates])
            done = set(self.space.keys(rows).tolist())
            self._waiting = [key for key in self._waiting if key not in done]
            latency_s = np.array([outcome.latency_s for outcome in outcomes])
            self.know(rows, latency_s, np.array([one.concerns_program for one in outcomes]))

    def know(self, rows: Ints, latency_s: Floats, tried: Mask | None = None) -> None:
        """Add results of this or an earlier run, whose programs are not proposed again."""
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

    def restore(self, space: int, decisions: Ints) -> Candidate:
        """See :class:`Search`."""
        row = self.row(space, decisions)
        (schedule,) = self.space.instantiate(row[None])
        return self._candidate(row, schedule)

    def row(self, space: int, decisions: Sequence[int] | Ints) -> Ints:
        """Return the vector of a program in the journal, zero-padded."""
        row = np.zeros(self.space.num_slots, np.int64)
        row[0], row[1 : 1 + len(decisions)] = space, decisions
        return row

    def _candidate(self, row: Ints, schedule: Any) -> Candidate:
        size = self.space.widths[int(row[0])]
        return Candidate(space=int(row[0]), decisions=row[1 : 1 + size], schedule=schedule)

    def _row(self, candidate: Candidate) -> Ints:
        """Raises `DataError` for a program that belongs to none of the spaces."""
        widths, size = self.space.widths, len(candidate.decisions)
        if candidate.space not in range(len(widths)) or size != widths[candidate.space]:
            raise DataError(
                f"space {candidate.space} with {size} decisions does not belong to this task: "
                "another version measured it, or it is damaged; a new run with warm_start=[RUN] "
                "uses its measurements"
            )
        return self.row(candidate.space, candidate.decisions)


def decision_search(
    space: TaskSpace,
    policy: PolicySettings,
    draft: ScoreFunction | None,
    learner: TaskLearner | None,
    rng: np.random.Generator,
    *,
    gpu: bool = False,
) -> DecisionSearch:
    """Make the search of a task, which also learns from failures.

    `draft` None: none. `gpu`: its programs run on a GPU.
    """
    history, policy = History(space), policy.for_device(gpu=gpu)
    if space.affordable is not None:
        policy = policy.limited(space.affordable, can_draft=space.can_draft)
    if draft is not None:
        # Around the draft: every policy that respects its minus infinity avoids failures.
        draft = FailureModel(history, draft, space.affordable)
    return DecisionSearch(space, policy.make(space, draft, learner, rng), history, learner)
