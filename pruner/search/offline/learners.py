"""Learned scores offline: one ranker and adaptation method for all pools.

The ranker's inputs of a pool are prepared once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pruner.arrays import Decisions
from pruner.models.adaptation.base import Adaptation
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import Center
from pruner.search.explorer import ScoreFunction
from pruner.search.history import History
from pruner.search.offline.recorded import RecordedTask, table
from pruner.search.policy import State


class RecordedModel:
    """A ranker that learns from several pools and scores each pool.

    The centre of a task (see `Adaptation.set_reference_population`) is the mean of its complete
    pool: features need no measurement. The ranker is updated when a score is requested with more
    measurements than at the last update, so a round of ten programs is one update. Without a
    source model there are no scores before the first update with two programs of a task.
    """

    def __init__(self, pools: Sequence[RecordedTask], adaptation: Adaptation) -> None:
        self.adaptation = adaptation
        self._store = ProgramTable.build(pool.programs for pool in pools)
        self._spaces = [pool.space for pool in pools]
        self._programs = self._store.by_task(torch.arange(self._store.num_programs))
        self._measured = [torch.zeros(0, dtype=torch.long) for _ in pools]
        self._num_learned = 0
        self._informed = adaptation.setting.source is not None
        # A live run only sees its own samples; a recorded pool is complete, so its centre never
        # moves.
        if adaptation.ranker.relative:
            for pool, programs in zip(pools, self._programs, strict=True):
                center = Center.of(self._store.programs(programs))
                adaptation.ranker.centers[pool.key] = center

    def learner(self, number: int) -> RecordedLearner:
        """The learner of pool `number`, which updates this model."""
        return RecordedLearner(self, number)

    def note(self, number: int, decisions: Decisions) -> None:
        """Add the measured decisions of pool `number` to the training data."""
        found = self._programs[number][torch.from_numpy(self._spaces[number].rows(decisions))]
        # The history repeats earlier programs; each is learned from once.
        self._measured[number] = torch.cat([self._measured[number], found]).unique()

    def score(self, number: int) -> ScoreFunction | None:
        """Update the model and score pool `number`; None without training data."""
        self._update()
        if not self._informed:
            return None
        score = self.adaptation.ranker.score_store(self._store, self._programs[number])
        return table(self._spaces[number], score.astype(np.float64))

    def _update(self) -> None:
        index = torch.cat(self._measured)
        if len(index) > self._num_learned:
            self.adaptation.update(self._store.subset(index))
            self._num_learned = len(index)
            # Ranking losses need a pair: one program of every task gives no gradient at all.
            self._informed = self._informed or max(map(len, self._measured)) > 1


@dataclass(frozen=True, slots=True)
class RecordedLearner:
    """The learner of one pool; see :class:`pruner.search.decision_search.TaskLearner`."""

    model: RecordedModel
    number: int

    def __call__(self, history: History) -> ScoreFunction | None:
        """Update the model with the history and score the pool."""
        self.note(history)
        return self.model.score(self.number)

    def note(self, history: History) -> None:
        """Add the history to the training data of the shared model."""
        self.model.note(self.number, history.decisions)

    def state(self) -> State:
        """Nothing: a recorded run is not resumed."""
        return {}

    def load_state(self, state: State) -> None:
        """See `state`."""
