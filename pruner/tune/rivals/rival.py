"""Searches of others in our harness: what their settings do beside those of our own policies."""

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


class RivalSearch(ABC):
    """Settings of a search with a model of its own, whose proposals we build and measure."""

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    @abstractmethod
    def shared(self, platform: Platform) -> Any:
        """What the searches of all tasks of a run have in common, such as one model."""

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
        """The search of one task; `database` is TVM's, `budget`: trials in all and of a batch."""


class RivalProcess(ABC):
    """Settings of a search that builds and measures in a process of its own."""

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    @abstractmethod
    def check(self, measure: MeasureSettings, asked: Mapping[str, Any]) -> None:
        """Raise `PrunerError` for an option that it cannot follow.

        `asked` are options of the run by name; what is false, None or empty was not asked for.
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
        """Spend the budget, or what of it there is before the run is asked to end, and write the
        journal of `folder`; seconds of every phase.

        Raises:
            PrunerError: workloads or a platform that it cannot tune.
        """
