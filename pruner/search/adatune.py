"""AdaTune (Li et al., NeurIPS'20): propose programs by a forest's expected improvement.

From the release (RF_cost_model.py, dynamic_model_based_tuner.py): 10 trees; random share = mean
spread of 20 random programs over the best. Our evolution replaces AutoTVM's simulated annealing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from pruner.arrays import Decisions, Floats, Keys, Scores
from pruner.models.trees.forest import Forest, ForestSettings
from pruner.search.explorer import ExplorerSettings, ScoreFunction, explore
from pruner.search.policy import NO_KEYS, PolicySettings, RandomPolicy, filled, fresh, guard
from pruner.search.space import History

_LEAST = 1e-12  # least expected improvement, so that its logarithm is finite
_PROBES = 20  # random programs whose spread sets the random share


_EXPLORER = ExplorerSettings(population=512, generations=4, keep=64)


def expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """Expected improvement over `best` of normal posteriors (mean, spread), each [N]."""
    # Mockus' closed form for a normal posterior; where the trees agree its limit for s -> 0.
    gain = mean - best
    sure = spread <= 0
    z = gain / np.where(sure, 1.0, spread)
    below = 0.5 * (1.0 + np.array([math.erf(value / math.sqrt(2.0)) for value in z]))
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return np.where(sure, np.maximum(gain, 0.0), gain * below + spread * density)


def decision_columns(decisions: Decisions) -> Floats:
    """Scale decisions [N, d] to forest inputs ``sign(x) log2(1 + |x|)``."""
    return np.sign(decisions) * np.log2(1.0 + np.abs(decisions))


class AdaTunePolicy(RandomPolicy):
    """Propose the programs with the largest expected improvement.

    Only of finite `draft` score; speeds are ``best / latency``, 0 for failures. The forest is its
    model, of the decisions. Raises MissingExtra without lightgbm.
    """

    def _begin(self) -> None:
        self._explorer: ExplorerSettings = self._settings.explorer

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`pruner.search.policy.Policy`."""
        seen = np.concatenate([history.keys, pending])
        sample = self._legal(self._explorer.population)
        forest, unseen = self._forest(history), fresh(self._space, sample, seen, num)
        if forest is None or not len(unseen):
            return unseen
        # The release's rule: where trees disagree on random programs, more are random.
        spread = forest.trees(decision_columns(sample[:_PROBES])).std(axis=0)
        num_random = int(min(1.0, float(spread.mean())) * num)
        score = guard(_score(forest), self._draft)
        how = self._explorer.keeping(num)
        found = explore(self._space, score, how, self._rng, start=sample, exclude=seen)
        chosen = found.decisions[: num - num_random]
        # Drawn after the choice so that the random part repeats none of the chosen programs.
        return filled(self._space, chosen, self._legal(3 * num), seen, num)

    def _forest(self, history: History) -> Forest | None:
        latency_s = history.latency_s[history.tried]
        # One speed has no spread: a forest of it would predict the same for every program.
        if np.isfinite(latency_s).sum() < 2:
            return None
        speed = latency_s.min() / latency_s
        seed = int(self._rng.integers(2**31))
        columns = decision_columns(history.decisions[history.tried])
        return Forest(columns, speed, settings=self._settings.forest, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaTuneSettings(PolicySettings):
    """Settings of a round."""

    explorer: ExplorerSettings = _EXPLORER
    forest: ForestSettings = field(default_factory=ForestSettings)

    policy: ClassVar = AdaTunePolicy

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`pruner.search.policy.PolicySettings`."""
        most = min(population, self.explorer.population)
        return replace(self, explorer=replace(self.explorer, population=most, generations=0))


def _score(forest: Forest) -> ScoreFunction:
    """Logarithm of the expected improvement: evolution weighs parents by the exponential."""

    def score(decisions: Decisions) -> Scores:
        trees = forest.trees(decision_columns(decisions))
        gain = expected_improvement(trees.mean(axis=0), trees.std(axis=0), 1.0)
        # `select` takes scores for -log(latency): so its weights are the improvement itself.
        return np.log(np.maximum(gain, _LEAST))

    return score
