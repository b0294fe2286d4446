"""Propose programs by a language model over decisions alone, after TLM (OSDI'24).

From the source (Zhai et al.): an autoregressive model draws the decisions behind a description of
operator and device, and learns from fast programs of other tasks. Differences: a small recurrent
network describes options by numbers instead of words; it begins as the sampling of MetaSchedule and
learns the difference, also from slow programs (experiments/proposals/fit.py); the
most likely of the drawn programs are measured, and a run does not train it further.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from pruner.arrays import Decisions, Floats, Keys
from pruner.errors import PrunerError
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.models.proposals.proposal_model import ProposalModel, bundled_weights
from pruner.search.explorer import NoneFound
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.policy import NO_KEYS, PolicySettings, RandomPolicy, accepted, filled, fresh
from pruner.search.space import History, SearchSpace


class ProposeLmPolicy(RandomPolicy):
    """Propose the programs that the model makes more likely than random draws.

    Recorded programs are ranked all at once, else ``draws`` for each batch; where the model draws
    nothing new, programs are drawn at random.
    """

    def _begin(self) -> None:
        self._proposer = Proposer(self._space, proposal_model(self._settings.weights))

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`pruner.search.policy.Policy`."""
        seen = np.concatenate([history.keys, pending])
        if isinstance(self._space, RecordedSpace) and not self._proposer.falls_back:
            every = self._space.decisions
            ranked = every[np.argsort(-self._proposer.log_ratio(every), kind="stable")]
            return fresh(self._space, accepted(self._draft, ranked), seen, num)
        draws = max(num, self._settings.draws)
        rows, ratio = self._proposer.sample(draws, self._rng)
        rows = rows[np.argsort(-ratio, kind="stable")]
        chosen = fresh(self._space, accepted(self._draft, rows), seen, num)
        if len(chosen) < num:
            chosen = filled(self._space, chosen, self._legal(draws), seen, num)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeLmSettings(PolicySettings):
    """Settings of the proposals; ``weights``: a file, or None for the project's own."""

    weights: str | None = None
    draws: int = 64  # for a batch, whose most likely programs are measured

    policy: ClassVar = ProposeLmPolicy

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise PrunerError("policy.draws must be at least 1")

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`pruner.search.policy.PolicySettings`."""
        return replace(self, draws=min(population, self.draws))


log = logging.getLogger(__name__)
_ROUNDS = 8  # of draws, until there are enough programs that the target accepts


@cache
def proposal_model(weights: str | None) -> ProposalModel:
    """Read weights once (None: the project's); raise `PrunerError` without such a file."""
    return ProposalModel.load(bundled_weights() if weights is None else Path(weights))


class Proposer:
    """Draws programs of all design spaces, of untrained kinds as MetaSchedule does."""

    def __init__(self, space: SearchSpace, model: ProposalModel) -> None:
        """Read the tokens of the spaces; report the spaces without trained tokens."""
        self._space, self._model = space, model
        tokens = getattr(space, "token_spaces", None)
        self._spaces: list[TokenSpace | None] = tokens() if tokens else [None]
        strange = sum(not model.fits(one) for one in self._spaces)
        self.falls_back = strange == len(self._spaces)
        if strange:
            kinds = sorted({one.kind for one in self._spaces if one and not model.fits(one)})
            log.warning(
                "proposals: %d of %d design spaces are drawn at random, the language model was "
                "trained on none of their kind (%s)",
                strange, len(self._spaces),
                "; ".join(kinds) or "no tokens: TVM replays them, or no device is described",
            )  # fmt: skip
        self._log_probs = model.space_log_probs(self._spaces)

    def sample(self, num: int, rng: np.random.Generator) -> tuple[Decisions, Floats]:
        """Draw at most `num` programs int64 [num, d] that the target accepts.

        The second result are their log likelihood ratios [num] to MetaSchedule's own draws.
        """
        space: Any = self._space
        if self.falls_back:
            return space.sample(num, rng), np.zeros(num)
        if isinstance(space, RecordedSpace):
            # recorded programs were drawn at random, so their ratios are weights
            ratio = self.log_ratio(space.decisions)
            ratio = ratio if np.isfinite(ratio).any() else np.zeros(len(ratio))
            weights = np.exp(ratio - ratio.max())
            chosen = rng.choice(len(ratio), size=num, p=weights / weights.sum())
            return space.decisions[chosen], ratio[chosen]
        rows = np.zeros((0, space.num_slots), np.int64)
        ratio = np.zeros(0)
        for _ in range(_ROUNDS):
            lacking = num - len(rows)
            if lacking <= 0:
                break
            numbers = rng.choice(len(self._spaces), size=lacking, p=np.exp(self._log_probs))
            for number in np.unique(numbers).tolist():
                found, scores = self._drawn(number, int((numbers == number).sum()), rng)
                rows = np.concatenate([rows, found])
                ratio = np.concatenate([ratio, scores])
        order = rng.permutation(len(rows))[:num]
        return rows[order], ratio[order]

    def log_ratio(self, rows: Decisions) -> Floats:
        """Log likelihood ratios [N] of programs; 0 in spaces without trained tokens."""
        out = np.zeros(len(rows))
        for number, tokens in enumerate(self._spaces):
            mine = np.flatnonzero(rows[:, 0] == number)
            if len(mine) and tokens is not None and self._model.fits(tokens):
                vectors = rows[mine, 1 : 1 + len(tokens.start)]
                out[mine] = self._model.log_ratio(tokens, vectors)
            out[mine] += self._log_probs[number] + np.log(len(self._spaces))
        return out

    def _drawn(self, number: int, num: int, rng: np.random.Generator) -> tuple[Decisions, Floats]:
        space: Any = self._space
        tokens = self._spaces[number]
        if tokens is not None and self._model.fits(tokens):
            rows, ratio = space.drawn(number, lambda: self._model.draw(tokens, num, rng))
        else:
            try:
                rows = space.spaces[number].sample(num, rng)
            except NoneFound:
                rows = np.zeros((0, 0), np.int64)
            ratio = np.zeros(len(rows))
        out = np.zeros((len(rows), space.num_slots), np.int64)
        out[:, 0] = number
        out[:, 1 : 1 + rows.shape[1]] = rows
        return out, ratio + self._log_probs[number] + np.log(len(self._spaces))
