"""Draft scores of decision vectors for the explorer: symbols, legality, analyzer."""

from __future__ import annotations

import numpy as np

from pruner.models.symbolic.analyzer import Analyzer
from pruner.program.dag import ComputeDAG
from pruner.program.steps import Primitive
from pruner.search.explorer import Scores
from pruner.search.space import Decisions

_CHUNK = 2048  # programs at once: arrays that stay in the caches


class DraftScore:
    """Scores of decision vectors of one skeleton; minus infinity where illegal."""

    def __init__(
        self, dag: ComputeDAG, skeleton: tuple[Primitive, ...], analyzer: Analyzer
    ) -> None:
        """Closed formulas where the skeleton has them, else loop nests."""
        self._plan = analyzer.plan(dag, skeleton)
        self._analyzer = analyzer

    def __call__(self, decisions: Decisions) -> Scores:
        """``-log(predicted seconds)`` [N]."""
        out = np.empty(len(decisions))
        for start in range(0, len(decisions), _CHUNK):
            symbols = self._plan.symbols(decisions[start : start + _CHUNK])
            out[start : start + _CHUNK] = self._analyzer.scores(symbols)
        return out
