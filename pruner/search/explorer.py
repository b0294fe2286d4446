"""The latent schedule explorer: evolution with the draft score as fitness.

Pruner (ASPLOS'25), Algorithms 1 and 2; sizes and rates: docs/paper.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Scores
from pruner.errors import PrunerError
from pruner.search.selection import kept
from pruner.search.space import SearchSpace, unique_rows

MUTATED = 0.85  # share of a generation that is mutated, as in the release
ScoreFunction = Callable[[Decisions], Scores]  # higher is better, minus infinity: never choose


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerSettings:
    """Sizes of the evolution; ``apart``, ``noise``: :func:`pruner.search.selection.kept`."""

    population: int
    generations: int
    keep: int
    mutation_probability: float = MUTATED
    apart: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        """Raises `PrunerError` on numbers that cannot work."""
        if min(self.population, self.keep) < 1 or self.generations < 0:
            raise PrunerError("explorer: population and keep must be at least 1, generations 0")
        if not 0 <= self.mutation_probability <= 1:
            raise PrunerError("explorer: mutation_probability must be from 0 to 1")
        if min(self.apart, self.noise) < 0:
            raise PrunerError("explorer: apart and noise must be 0 or more")

    def keeping(self, num: int) -> Self:
        """The same evolution, which keeps at least `num`."""
        return replace(self, keep=max(self.keep, num))


class NoneFound(PrunerError):
    """Evolution found no legal vector outside `exclude`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """Decision vectors [N, d] and scores [N] in order; ``scored`` vectors in all."""

    decisions: Decisions
    score: Scores
    scored: int


def explore(
    space: SearchSpace,
    score: ScoreFunction,
    settings: ExplorerSettings,
    rng: np.random.Generator,
    *,
    start: Decisions | None = None,
    exclude: NDArray[np.int64] | None = None,
) -> Explored:
    """Evolve and return the ``keep`` best distinct legal vectors outside `exclude`.

    `exclude` holds keys, `start` the first population (default: random). Illegal is a score of
    minus infinity. Raises `NoneFound` where nothing is left.
    """
    population = space.sample(settings.population, rng) if start is None else start
    best = Explored(decisions=population[:0], score=np.zeros(0), scored=0)
    # G generations are G + 1 scorings, as in the release: the last children are scored, too. The
    # kept set is merged across generations, so a good ancestor is not lost to mutation.
    for generation in range(settings.generations + 1):
        scores = score(population)
        best = _merge(space, best, population, scores, settings, rng, exclude)
        if generation < settings.generations:
            parents = population[select(scores, settings.population, rng)]
            # Mutation only: Ansor's and Pruner's releases have no crossover either.
            changed = rng.random(len(parents)) < settings.mutation_probability
            population = np.where(changed[:, None], space.mutate(parents, rng), parents)
    if not len(best.decisions):
        raise NoneFound(
            "no legal schedule among the drafted ones; check the device's limits, or draft more"
        )
    return best


def select(score: Scores, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `num` parents with probabilities proportional to ``1 / predicted latency``.

    Scores are ``-log(latency)``; uniform where no vector is legal.
    """
    finite = np.isfinite(score)
    if not finite.any():
        return rng.integers(0, len(score), num)
    # Less the best score: exp cannot overflow, and a common factor cancels in the probabilities.
    weight = np.where(finite, np.exp(np.where(finite, score, 0) - score[finite].max()), 0.0)
    edges = np.cumsum(weight)
    return np.searchsorted(edges, rng.random(num) * edges[-1], side="right")


def _merge(
    space: SearchSpace,
    best: Explored,
    population: Decisions,
    score: Scores,
    settings: ExplorerSettings,
    rng: np.random.Generator,
    exclude: NDArray[np.int64] | None,
) -> Explored:
    rows = np.concatenate([best.decisions, population])
    scores = np.concatenate([best.score, score])
    keys = space.keys(rows)
    good = np.isfinite(scores)
    if exclude is not None and len(exclude):
        good &= ~np.isin(keys, exclude)
    chosen = np.flatnonzero(good)
    chosen = chosen[unique_rows(keys[chosen])]
    order = chosen[
        kept(
            scores[chosen],
            settings.keep,
            rng=rng,
            decisions=rows[chosen],
            apart=settings.apart,
            noise=settings.noise,
        )
    ]
    return Explored(
        decisions=rows[order], score=scores[order], scored=best.scored + len(population)
    )


class Memoised:
    """A score function that scores each program only once, for one round."""

    def __init__(self, space: SearchSpace, score: ScoreFunction) -> None:
        self._space, self._score = space, score
        self._keys = np.zeros(0, np.int64)  # ascending, for searchsorted
        self._scores: Scores = np.zeros(0)

    def __call__(self, decisions: Decisions) -> Scores:
        """Scores [N], higher is better."""
        keys = self._space.keys(decisions)
        unique, first = np.unique(keys, return_index=True)
        rows = np.sort(first[~np.isin(unique, self._keys)])
        if len(rows):
            known = np.concatenate([self._keys, keys[rows]])
            scores = np.concatenate([self._scores, self._score(decisions[rows])])
            order = np.argsort(known)
            self._keys, self._scores = known[order], scores[order]
        return self._scores[np.searchsorted(self._keys, keys)]
