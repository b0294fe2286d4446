"""Judge a ranker on measured programs outside its training set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pruner.data.networks import RecordedNetwork
from pruner.data.splits import TaskSplit
from pruner.errors import DataError
from pruner.models.judging.metrics import ScoredTask
from pruner.models.judging.summary import (
    ScoredNetwork,
    full_report,
    network_rows,
    scored_networks,
    task_rows,
)
from pruner.models.programs.assemble import programs_on_side, small_tasks_removed
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import Ranker


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics over all tasks, chance for comparison, and the tasks.

    `networks` are the requested networks, as far as tasks of theirs are here. `metrics` are
    explained in ``docs/metrics.md``.
    """

    metrics: Mapping[str, Any]
    tasks: Sequence[ScoredTask]
    networks: Sequence[ScoredNetwork] = ()

    @classmethod
    def of(cls, tasks: Sequence[ScoredTask], networks: Sequence[RecordedNetwork] = ()) -> Self:
        """Judge scored tasks, and the networks that they belong to."""
        found = scored_networks(tasks, networks)
        return cls(metrics=full_report(tasks, found), tasks=tasks, networks=found)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row a task (`task_rows`)."""
        return task_rows(self.tasks)

    @property
    def network_rows(self) -> list[dict[str, Any]]:
        """A row a network (`pruner.models.judging.summary.network_rows`)."""
        return network_rows(self.networks)


def judge(
    ranker: Ranker, programs: ProgramTable, split: TaskSplit, *, min_programs: int = 1
) -> Report:
    """Rank the test programs of every task, and judge networks held out.

    Raises DataError where no test task has `min_programs` programs.
    """
    # Among very few programs any ranking finds a good one.
    test = programs_on_side(programs, split, "test")
    index = small_tasks_removed(programs, test, min_programs)
    if not len(index):
        raise DataError(f"no test task has {min_programs} programs; lower min_programs")
    return Report.of(ranker.score_tasks(programs, index), split.networks)
