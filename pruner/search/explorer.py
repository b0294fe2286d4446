"""The latent schedule explorer: evolution with the draft score as fitness.

Pruner (ASPLOS'25), Algorithms 1 and 2; sizes and rates: docs/paper.md section 3.
Scored programs are selected the best first, apart from each other, some at random:

* *apart*: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), because the first
  programs of a draft are near-copies. The next program has the largest ``score - apart *
  likeness``; its likeness is the largest share of decisions that it has in common with a
  program already selected;
* *noise*: the score's own error (log seconds). Programs left out that score less than that below
  the last selected score are indistinguishable from it; their share of all that are left out is
  the share of places that are filled at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pruner.arrays import Decisions, Ints, Scores
from pruner.errors import PrunerError
from pruner.search.space import SearchSpace, unique_rows

MUTATED = 0.85  # share of a generation that is mutated, as in the release
ScoreFunction = Callable[[Decisions], Scores]  # higher is better, minus infinity: never choose


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerSettings:
    """Sizes of the evolution; ``apart``, ``noise``: :func:`kept`."""

    population: int
    generations: int
    keep: int
    mutation_probability: float = MUTATED
    apart: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
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
    exclude: Ints | None = None,
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


def select(score: Scores, num: int, rng: np.random.Generator) -> Ints:
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
    exclude: Ints | None,
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


def kept(
    score: Scores,
    num: int,
    *,
    rng: np.random.Generator,
    decisions: Decisions | None = None,
    apart: float = 0.0,
    noise: float = 0.0,
    beside: Decisions | None = None,
) -> Ints:
    """Positions of at most `num` selected programs, in the order of selection.

    ``beside``: programs selected earlier, from which these lie `apart` (needs `decisions`), too.
    Random programs (`noise`, which alone uses `rng`) come last. Minus infinity: never.
    """
    legal = np.flatnonzero(np.isfinite(score))
    order = legal[np.argsort(-score[legal], kind="stable")]
    # Before any use of `rng`: the default selection must not move the random stream of the search.
    if len(order) <= num or not (apart or noise):
        return order[:num]
    by_chance = round(num * flat_share(score[order], num, noise)) if noise else 0
    first = order[: num - by_chance]
    if apart and decisions is not None:
        first = _apart(score, decisions, order, num - by_chance, apart, beside)
    if not by_chance:
        return first
    others = order[~np.isin(order, first)]
    return np.concatenate([first, rng.choice(others, by_chance, replace=False)])


def flat_share(score: Scores, num: int, noise: float) -> float:
    """Share of the programs left out within `noise` of the last selected.

    `score` is in descending order and longer than `num`.

    >>> flat_share(np.array([0.0, -1.0, -1.2, -1.4, -3.0]), 2, noise=0.3)
    0.3333333333333333
    """
    return float(np.mean(score[num:] > score[num - 1] - noise))


def _apart(
    score: Scores,
    decisions: Decisions,
    order: Ints,
    num: int,
    apart: float,
    beside: Decisions | None,
) -> Ints:
    """The first `num` programs by score less `apart` times the likeness."""
    rows, value = decisions[order], score[order].astype(np.float64)
    likeness = np.zeros(len(order))
    for other in () if beside is None else beside:
        np.maximum(likeness, (rows == other).mean(axis=1), out=likeness)
    left = np.ones(len(order), bool)
    picked = np.empty(num, np.int64)
    for place in range(num):
        best = int(np.argmax(np.where(left, value - apart * likeness, -np.inf)))
        picked[place], left[best] = best, False
        # A running maximum: one comparison with the newest program instead of all selected pairs.
        np.maximum(likeness, (rows == rows[best]).mean(axis=1), out=likeness)
    return order[picked]
