"""The latent schedule explorer: evolution over decision vectors with the draft score as fitness.

Pruner (ASPLOS'25), Algorithms 1 and 2; sizes and rates of the presets are those of docs/paper.md
section 3. Nothing is built or lowered: a generation is a few array operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Scores
from pruner.errors import PrunerError
from pruner.search.space import SearchSpace, unique_rows

ScoreFunction = Callable[[Decisions], Scores]  # higher is better, minus infinity: never choose
Check = Callable[[Decisions], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerSettings:
    """How a draft is made. ``population`` programs a generation, the ``keep`` best of all stay."""

    population: int
    generations: int
    keep: int
    mutation_probability: float = 0.85

    def __post_init__(self) -> None:
        """Raises `PrunerError` on numbers that cannot work."""
        if min(self.population, self.keep) < 1 or self.generations < 0:
            raise PrunerError("explorer: population and keep must be at least 1, generations 0")


class NoneFound(PrunerError):
    """No legal vector was met that is not excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Drafted decision vectors, best first; ``scored`` counts what the draft model looked at."""

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
    legal: Check | None = None,
) -> Draft:
    """Evolve; the ``keep`` best distinct legal vectors that are not in `exclude` (space keys).

    The score tells most of the illegal ones cheaply; `legal` is the whole check, asked for what
    leaves the explorer only, so fewer than ``keep`` may remain.

    Raises:
        NoneFound: no legal vector was met that is not in `exclude`.
    """
    population = space.sample(settings.population, rng) if start is None else start
    best = Draft(decisions=population[:0], score=np.zeros(0), scored=0)
    for generation in range(settings.generations + 1):
        scores = score(population)
        best = _merge(space, best, population, scores, settings.keep, exclude)
        if generation < settings.generations:
            parents = population[select(scores, settings.population, rng)]
            changed = rng.random(len(parents)) < settings.mutation_probability
            population = np.where(changed[:, None], space.mutate(parents, rng), parents)
    if legal is not None:
        passed = legal(best.decisions)
        best = replace(best, decisions=best.decisions[passed], score=best.score[passed])
    if not len(best.decisions):
        raise NoneFound(
            "no legal schedule among the drafted ones; check the device's limits, or draft more"
        )
    return best


def select(score: Scores, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Parents, with probability proportional to ``1 / predicted latency``.

    Scores are ``-log(latency)``, so the weights are ``exp(score - best)``; uniform where
    none is legal.
    """
    finite = np.isfinite(score)
    if not finite.any():
        return rng.integers(0, len(score), num)
    weight = np.where(finite, np.exp(np.where(finite, score, 0) - score[finite].max()), 0.0)
    edges = np.cumsum(weight)
    return np.searchsorted(edges, rng.random(num) * edges[-1], side="right")


def _merge(
    space: SearchSpace,
    best: Draft,
    population: Decisions,
    score: Scores,
    keep: int,
    exclude: NDArray[np.int64] | None,
) -> Draft:
    rows = np.concatenate([best.decisions, population])
    scores = np.concatenate([best.score, score])
    keys = space.keys(rows)
    good = np.isfinite(scores)
    if exclude is not None and len(exclude):
        good &= ~np.isin(keys, exclude)
    chosen = np.flatnonzero(good)
    chosen = chosen[unique_rows(keys[chosen])]
    order = chosen[np.argsort(-scores[chosen], kind="stable")[:keep]]
    return Draft(decisions=rows[order], score=scores[order], scored=best.scored + len(population))
