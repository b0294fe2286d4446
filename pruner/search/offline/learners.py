"""Learned scores offline: one ranker, carried by an adaptation method, for one or many pools.

What the ranker sees of a pool is prepared once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.models.adaptation.base import Adaptation
from pruner.models.programs.scaler import Center
from pruner.models.programs.table import ProgramTable
from pruner.search.explorer import ScoreFunction
from pruner.search.offline.recorded import RecordedPool, table
from pruner.search.offline.session import OfflineMeasurer
from pruner.search.policy import Learner, Measurements


class PoolModel:
    """One ranker that learns from the measured programs of several pools and scores any of them.

    The centre of a task (see `Adaptation.meet`) is the mean of its whole pool: features are known
    before anything is measured. An update happens when a learner is asked with more measurements
    than at the last one, so a round of ten programs is one update. Without a source model there are
    no scores before the first update with two programs of a task.
    """

    def __init__(self, pools: Sequence[RecordedPool], adaptation: Adaptation) -> None:
        self.adaptation = adaptation
        self._store = ProgramTable.build(pool.programs for pool in pools)
        self._spaces = [pool.space for pool in pools]
        self._programs = self._store.by_task(torch.arange(self._store.num_programs))
        self._measured = [torch.zeros(0, dtype=torch.long) for _ in pools]
        self._num_learned = 0
        self._informed = adaptation.setting.source is not None
        if adaptation.ranker.relative:
            for pool, programs in zip(pools, self._programs, strict=True):
                center = Center.of(self._store.programs(programs))
                adaptation.ranker.centers[pool.key] = center

    def learner(self, number: int) -> Learner:
        """The learner of pool `number`: takes its measurements, updates the model, scores it."""
        space, programs = self._spaces[number], self._programs[number]

        def learn(decisions: Decisions, _latency_s: NDArray[np.float64]) -> ScoreFunction | None:
            self._note(number, decisions)
            self._update()
            if not self._informed:
                return None
            score = self.adaptation.ranker.score_store(self._store, programs)
            return table(space, score.astype(np.float64))

        return learn

    def noting(self, number: int, measurer: OfflineMeasurer) -> OfflineMeasurer:
        """The measurer of pool `number`, with what it measures noted for all learners at once."""
        return _Noting(measurer, lambda decisions: self._note(number, decisions))

    def _note(self, number: int, decisions: Decisions) -> None:
        found = self._programs[number][torch.from_numpy(self._spaces[number].rows(decisions))]
        self._measured[number] = torch.cat([self._measured[number], found]).unique()

    def _update(self) -> None:
        index = torch.cat(self._measured)
        if len(index) > self._num_learned:
            self.adaptation.update(self._store.subset(index))
            self._num_learned = len(index)
            self._informed = self._informed or max(map(len, self._measured)) > 1


class _Noting:
    """A measurer that tells somebody what was measured."""

    def __init__(self, measurer: OfflineMeasurer, note: Callable[[Decisions], None]) -> None:
        self._measurer, self._note = measurer, note
        self.clock = measurer.clock

    def measure(self, decisions: Decisions) -> Measurements:
        """See :class:`OfflineMeasurer`."""
        measured = self._measurer.measure(decisions)
        self._note(decisions)
        return measured
