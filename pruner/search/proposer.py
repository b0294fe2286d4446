"""Draw programs of a task by a language model over its decisions."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pruner.arrays import Decisions, Floats
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.models.proposals.proposal_model import ProposalModel, bundled_weights
from pruner.search.offline.recorded_space import RecordedSpace
from pruner.search.space import SearchSpace

log = logging.getLogger(__name__)
_ROUNDS = 8  # of draws, until there are enough programs that the target accepts


@runtime_checkable
class TokenSpaces(Protocol):
    """A task whose design spaces have tokens.

    Column 0 of a vector is the number of the design space.
    """

    def token_spaces(self) -> list[TokenSpace | None]:
        """The tokens of each design space; None without tokens."""


@cache
def proposal_model(weights: str | None) -> ProposalModel:
    """Read weights once; None: the weights of the project.

    Raises:
        PrunerError: there is no such file, or it is no proposal model.
    """
    return ProposalModel.load(bundled_weights() if weights is None else Path(weights))


class Proposer:
    """Draws programs of all design spaces of a task.

    Spaces of kinds that the model was not trained on are drawn as MetaSchedule draws.
    """

    def __init__(self, space: SearchSpace, model: ProposalModel) -> None:
        """Read the tokens of the spaces; report the spaces without trained tokens."""
        self._space, self._model = space, model
        self._spaces = space.token_spaces() if isinstance(space, TokenSpaces) else [None]
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
        """Draw at most `num` programs that the target accepts.

        They are int64 [num, d] in random order. The second result are their log likelihood ratios
        [num] to MetaSchedule's own draws.
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
        """Draw programs of a design space, as vectors of the task."""
        space: Any = self._space
        tokens = self._spaces[number]
        if tokens is not None and self._model.fits(tokens):
            rows, ratio = space.drawn(number, lambda: self._model.draw(tokens, num, rng))
        else:
            rows, ratio = space.spaces[number].sample(num, rng), np.zeros(num)
        out = np.zeros((len(rows), space.num_slots), np.int64)
        out[:, 0] = number
        out[:, 1 : 1 + rows.shape[1]] = rows
        return out, ratio + self._log_probs[number] + np.log(len(self._spaces))
