"""The interface of other tuners' settings in our harness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pruner.search.decision_search import Search
from pruner.tune.measure.measurer import MeasureSettings, Platform
from pruner.tune.phases import Phases
from pruner.tune.run.journal import Trial
from pruner.tune.workloads import Workload


class BaselineTunerSearch(ABC):
    """Settings of a search that has its own model, but our measurer."""

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    @abstractmethod
    def shared(self, platform: Platform) -> Any:
        """Make the state of all tasks' searches, such as a model."""

    @abstractmethod
    def make(
        self,
        workload: Workload,
        platform: Platform,
        database: Any,
        *,
        shared: Any,
        budget: tuple[int, int],
        seed: int,
        phases: Phases,
    ) -> Search:
        """Make the search of a task.

        `database` is TVM's; `budget`: trials in all and of a batch.
        """


class BaselineTunerProcess(ABC):
    """Settings of a search that builds and measures in its own process."""

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    @abstractmethod
    def check(self, measure: MeasureSettings, asked: Mapping[str, Any]) -> None:
        """Raise `PrunerError` for an option that the process cannot follow.

        `asked` are options of the run by name; false, None or empty ones were not given.
        """

    @abstractmethod
    def run(
        self,
        workloads: Sequence[Workload],
        platform: Platform,
        measure: MeasureSettings,
        *,
        budget: tuple[int, int],
        seed: int,
        folder: Path,
        report: Callable[[Trial], None],
        interrupted: Callable[[], bool],
    ) -> Mapping[str, float]:
        """Spend the budget and write the journal of `folder`.

        It ends early if ``interrupted`` returns True.

        Returns:
            Seconds of every phase.

        Raises:
            PrunerError: workloads or a platform that it cannot tune.
        """
