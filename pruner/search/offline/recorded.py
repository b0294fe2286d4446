"""Pools to search, from the records of tasks, and their learned model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pruner.arrays import Decisions, Floats, Scores
from pruner.data.tasks import TaskKey, TaskRecords
from pruner.models.adaptation.base import Adaptation
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import Tally, featurize_task
from pruner.models.programs.scaler import Center
from pruner.program.replay import Definitions, find_definition
from pruner.program.te.skeleton import group_programs
from pruner.search.explorer import ScoreFunction
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.policy import State
from pruner.search.space import History

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTask:
    """N measured programs of a task, all arrays in one order.

    ``latency_s``, ``cost_s`` (building and measuring), ``draft`` [N]: the analyzer's score, None
    where it has none for this task; ``programs``: their features.
    """

    space: RecordedSpace
    latency_s: Floats
    cost_s: Floats
    draft: Scores | None
    programs: TaskPrograms

    @property
    def key(self) -> TaskKey:
        """The task of the pool."""
        return self.programs.key

    def __len__(self) -> int:
        return len(self.latency_s)


def recorded_task(
    records: TaskRecords,
    *,
    analyzer: Analyzer | None = None,
    programs: TaskPrograms | None = None,
    tasks: Definitions | None = None,
) -> RecordedTask | None:
    """Make a task's pool from given or computed features; None where none can be.

    The draft is None without an analyzer, or, with a warning, where it scores no program.
    """
    if programs is None:
        programs = featurize_task(records, "paper", Tally(), tasks)
    if programs is None:
        return None
    # Programs that could not be featurised leave the pool: all arrays have the features' rows.
    records = records.select(np.isin(records.line, programs.line))
    draft = None
    if analyzer is not None:
        dag = find_definition(records.workload_key, records.fused, records.steps, tasks)
        draft = _ranked_last_where_unknown(analyzer.score_steps(dag, records.steps), records.key)
    return RecordedTask(
        space=RecordedSpace(decision_rows(records)),
        latency_s=records.latency_s,
        cost_s=records.all_cost_s,
        draft=draft,
        programs=programs,
    )


def decision_rows(records: TaskRecords) -> Decisions:
    """Decision vectors [N, d] of all skeletons: skeleton number, decisions, zeros."""
    groups = group_programs(records.steps)[0]
    out = np.zeros((len(records), 1 + max(g.decisions.shape[1] for g in groups)), np.int64)
    for number, group in enumerate(groups):
        out[group.rows, 0] = number
        out[group.rows, 1 : 1 + group.decisions.shape[1]] = group.decisions
    return out


def table(space: RecordedSpace, score: Scores) -> ScoreFunction:
    """A score function that looks up the scores [N] of pool rows."""

    def lookup(decisions: Decisions) -> Scores:
        return score[space.rows(decisions)]

    return lookup


def _ranked_last_where_unknown(score: Scores, task: TaskKey) -> Scores | None:
    """Rank programs without analyzer score last, with a warning; None if all are."""
    known = np.isfinite(score)
    if not known.any():
        log.warning("%s: the analyzer scores none of its programs; no draft", task.task)
        return None
    if not known.all():
        log.warning(
            "%s: the analyzer has no score for %d of %d programs; the draft ranks them last",
            task.task,
            np.count_nonzero(~known),
            len(known),
        )
    # Finite: minus infinity would forbid programs whose latency is on record.
    return np.where(known, score, score[known].min() - 1)


class RecordedModel:
    """A ranker that learns from several pools, with a :class:`RecordedLearner` for each.

    The centre of a task (see `Adaptation.set_reference_population`) is the mean of its complete
    pool. A round is one update; without a source model there are no scores before the first.
    """

    def __init__(self, pools: Sequence[RecordedTask], adaptation: Adaptation) -> None:
        self.adaptation = adaptation
        self.store = ProgramTable.build(pool.programs for pool in pools)
        self.spaces = [pool.space for pool in pools]
        self.programs = self.store.by_task(torch.arange(self.store.num_programs))
        self.measured = [torch.zeros(0, dtype=torch.long) for _ in pools]
        self._num_learned = 0
        self.informed = adaptation.setting.source is not None
        # A recorded pool is complete, so its centre never moves.
        if adaptation.ranker.relative:
            for pool, programs in zip(pools, self.programs, strict=True):
                center = Center.of(self.store.programs(programs))
                adaptation.ranker.centers[pool.key] = center

    def update(self) -> None:
        """Learn from the measured programs of all pools, if there are more."""
        index = torch.cat(self.measured)
        if len(index) > self._num_learned:
            self.adaptation.update(self.store.subset(index))
            self._num_learned = len(index)
            # Ranking losses need a pair: one program of every task gives no gradient at all.
            self.informed = self.informed or max(map(len, self.measured)) > 1


@dataclass(frozen=True, slots=True)
class RecordedLearner:
    """The learner of one pool; see :class:`pruner.search.decision_search.TaskLearner`."""

    model: RecordedModel
    number: int

    def __call__(self, history: History) -> ScoreFunction | None:
        """Update the model with the history and score the pool; None without training data."""
        self.note(history)
        model = self.model
        model.update()
        if not model.informed:
            return None
        score = model.adaptation.ranker.score_store(model.store, model.programs[self.number])
        return table(model.spaces[self.number], score.astype(np.float64))

    def note(self, history: History) -> None:
        """Add the history to the training data of the shared model."""
        model, number = self.model, self.number
        rows = model.spaces[number].rows(history.decisions)
        found = model.programs[number][torch.from_numpy(rows)]
        # The history repeats earlier programs; each is learned from once.
        model.measured[number] = torch.cat([model.measured[number], found]).unique()

    def state(self) -> State:
        """Nothing: a recorded run is not resumed."""
        return {}

    def load_state(self, state: State) -> None:
        """See `state`."""
