"""Draft scores of decision vectors for the explorer: symbols, legality, analyzer."""

from __future__ import annotations

import numpy as np

from pruner.features.draft import DraftPlan, Symbols
from pruner.models.symbolic.analyzer import Analyzer
from pruner.program.dag import ComputeDAG
from pruner.program.device import GpuDevice
from pruner.program.steps import Primitive
from pruner.search.explorer import Scores
from pruner.search.space import Decisions

_CHUNK = 2048  # programs at once: arrays that stay in the caches
_FLOAT_BYTES = 4


def within_limits(symbols: Symbols, device: GpuDevice) -> np.ndarray:
    """Programs whose blocks the device can take: threads and shared memory, bool [N].

    A quick filter on the draft's own symbols; what is going to be measured passes the whole check
    (:mod:`pruner.program.legality`).
    """
    threads = symbols["l1_para_info"]
    shared_bytes = symbols["l1_mem_alloc"].sum(axis=0) * _FLOAT_BYTES
    fits = (threads <= device.max_threads_per_block).all(axis=0)
    return fits & (threads.max(axis=0) > 1) & (shared_bytes <= device.shared_bytes_per_block)


class DraftScore:
    """Scores of decision vectors of one skeleton; minus infinity where illegal."""

    def __init__(
        self, dag: ComputeDAG, skeleton: tuple[Primitive, ...], analyzer: Analyzer
    ) -> None:
        """Raises `UnsupportedProgram` where the skeleton has no formulas."""
        self._plan = DraftPlan(dag, skeleton)
        self._analyzer = analyzer

    def __call__(self, decisions: Decisions) -> Scores:
        """``-log(predicted seconds)`` [N]."""
        out = np.empty(len(decisions))
        for start in range(0, len(decisions), _CHUNK):
            symbols = self._plan.symbols(decisions[start : start + _CHUNK])
            legal = within_limits(symbols, self._analyzer.device)
            score = -np.log(self._analyzer.latency_s(symbols))
            out[start : start + _CHUNK] = np.where(legal, score, -np.inf)
        return out
