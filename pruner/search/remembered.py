"""Scores that are computed once: rounds meet the same programs again and again."""

from __future__ import annotations

import numpy as np

from pruner.arrays import Decisions, Scores
from pruner.search.explorer import ScoreFunction
from pruner.search.space import SearchSpace


class Remembered:
    """A score function that is asked for no program twice.

    For one round: parents that no mutation changed, twins inside a population and what was drafted
    before it is verified are half of what evolution scores.
    """

    def __init__(self, space: SearchSpace, score: ScoreFunction) -> None:
        self._space, self._score = space, score
        self._keys = np.zeros(0, np.int64)  # ascending
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
