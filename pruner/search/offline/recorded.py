"""Turn the records of a task into a pool to search.

Features and draft scores do not depend on the search: they are computed once and looked up by row.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Scores
from pruner.data.tasks import TaskKey, TaskRecords
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.programs.program_table import TaskPrograms
from pruner.models.programs.reading import Tally, featurize_task
from pruner.program.replay import Definitions, find_definition
from pruner.program.te.skeleton import group_programs
from pruner.search.explorer import ScoreFunction
from pruner.search.offline.recorded_space import RecordedSpace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTask:
    """N measured programs of a task, all arrays in one order.

    ``latency_s``, ``cost_s`` (building and measuring), ``draft`` [N]: the analyzer's score, None
    where it has none for this task; ``programs``: their features.
    """

    space: RecordedSpace
    latency_s: NDArray[np.float64]
    cost_s: NDArray[np.float64]
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
    """Make a task's pool; None when no program can be featurised.

    `programs` are the features where they exist already, else they are computed. The draft is None
    without an analyzer, or, with a warning, where the analyzer scores no program.
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
    """Rank programs without an analyzer score last; None if all are without.

    All programs of a pool ran, so none is illegal. Both cases log a warning.
    """
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
