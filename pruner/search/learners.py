"""Learned scores for replay: from measured decision vectors to a score function.

The learner sees a pool's feature rows (one per program, prepared once) and is refitted from scratch
on all measurements after every batch, as the public release does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.errors import MissingExtra
from pruner.search.explorer import ScoreFunction, Scores
from pruner.search.pool import PoolSpace
from pruner.search.space import Decisions


class TreeLearner:
    """Gradient-boosted trees on feature rows [pool, column]; the label is ``best / latency``."""

    def __init__(
        self,
        space: PoolSpace,
        features: NDArray[np.float64],
        *,
        rounds: int = 60,
        depth: int = 5,
        seed: int = 0,
    ) -> None:
        """Raises `MissingExtra` without xgboost."""
        try:
            import xgboost
        except ImportError as error:
            raise MissingExtra("xgboost", "gbdt") from error
        self._xgboost, self._space, self._features = xgboost, space, features
        self._rounds = rounds
        self._parameters = {"max_depth": depth, "eta": 0.2, "nthread": 1, "seed": seed}

    def __call__(
        self, decisions: Decisions, latency_s: NDArray[np.float64]
    ) -> ScoreFunction | None:
        """Fit; None while fewer than two programs ran."""
        if np.isfinite(latency_s).sum() < 2:
            return None
        label = latency_s.min() / latency_s
        rows = self._features[self._space.rows(decisions)]
        data = self._xgboost.DMatrix(rows, label=label)
        model = self._xgboost.train(self._parameters, data, self._rounds)
        score = model.predict(self._xgboost.DMatrix(self._features)).astype(np.float64)

        def lookup(wanted: Decisions) -> Scores:
            return score[self._space.rows(wanted)]

        return lookup
