"""Propose programs by a language model over decisions alone, after TLM.

This is TLM's idea (Zhai et al., OSDI'24), not TLM itself. From the source are

* a program is a sequence of decisions behind a description of operator and device, and an
  autoregressive model draws the sequence;
* the model learns from fast measured programs of other tasks;
* illegal decisions have no probability.

Differences: the model is small (a recurrent network; TLM tunes GPT-2) and describes each option by
numbers instead of words, so that it also scores factors of extents that it never saw; it begins as
the random sampling of MetaSchedule and learns the difference; it also learns from slow programs
(:mod:`pruner.models.proposals.proposal_fit`); of the drawn programs the most likely are measured,
and a run does not train it further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pruner.arrays import Decisions, Keys
from pruner.errors import PrunerError
from pruner.search.explorer import ScoreFunction
from pruner.search.history import History
from pruner.search.offline.recorded_space import RecordedSpace
from pruner.search.policy import NO_KEYS, Learner, RandomPolicy, accepted, fresh
from pruner.search.proposer import Proposer, proposal_model
from pruner.search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeLmSettings:
    """Settings of the proposals.

    ``weights``: a file of trained weights; None: the weights that come with the project. ``draws``:
    programs drawn for a batch, whose most likely programs are measured.
    """

    weights: str | None = None
    draws: int = 64

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False  # the first programs are the model's own

    def __post_init__(self) -> None:
        """Raises `PrunerError` on a number that cannot work."""
        if self.draws < 1:
            raise PrunerError("policy.draws must be at least 1")

    def make(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        rng: np.random.Generator,
    ) -> ProposeLmPolicy:
        """See :class:`pruner.search.policy.PolicySettings`; nothing is learned.

        Raises:
            PrunerError: there are no trained weights.
        """
        return ProposeLmPolicy(space, draft, self, rng)

    def limited(self, population: int, *, can_draft: bool) -> ProposeLmSettings:
        """See :class:`pruner.search.policy.PolicySettings`."""
        return replace(self, draws=min(population, self.draws))


class ProposeLmPolicy(RandomPolicy):
    """Propose the programs that the model makes most likely.

    Likely is meant relative to random draws. Recorded programs are ranked all at once. In a live
    space, ``draws`` programs are drawn for each batch; programs whose `draft` score is not finite
    are left out, and where the model draws nothing new, programs are drawn at random.
    """

    def __init__(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        settings: ProposeLmSettings,
        rng: np.random.Generator,
    ) -> None:
        """See :meth:`ProposeLmSettings.make`."""
        super().__init__(space, rng, accept=draft, draws=settings.draws)
        self._proposer = Proposer(space, proposal_model(settings.weights))

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`pruner.search.policy.Policy`."""
        seen = np.concatenate([history.keys, pending])
        if isinstance(self._space, RecordedSpace) and not self._proposer.falls_back:
            every = self._space.decisions
            ranked = every[np.argsort(-self._proposer.log_ratio(every), kind="stable")]
            return fresh(self._space, accepted(self._accept, ranked), seen, num)
        draws = max(num, self._draws)
        rows, ratio = self._proposer.sample(draws, self._rng)
        rows = rows[np.argsort(-ratio, kind="stable")]
        chosen = fresh(self._space, accepted(self._accept, rows), seen, num)
        if len(chosen) < num:
            seen = np.concatenate([seen, self._space.keys(chosen)])
            chosen = np.concatenate([chosen, self._random(draws, seen, num - len(chosen))])
        return chosen
