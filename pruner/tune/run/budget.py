"""The budget of a run, and presets for its open values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pruner.errors import PrunerError
from pruner.search.loop import TuneBudget

__all__ = ["Effort", "TuneBudget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Values for an incomplete budget; ``conf/effort`` has the presets.

    A network gets ``trials_per_task`` and ends after ``seconds`` or ``patience`` standing rounds;
    single operators get ``trials`` in all.
    """

    trials_per_task: int = 20
    seconds: float | None = None
    patience: int | None = 20
    trials: int = 64

    @property
    def measures(self) -> bool:
        """True if programs are measured; else networks are only drafted."""
        return self.trials_per_task > 0

    def budget(self, given: Mapping[str, Any], num_tasks: int | None) -> TuneBudget:
        """Make the budget of a network's tasks, None: operators; `given` values count."""
        ends = [name for name in ("trials", "seconds", "patience") if given.get(name) is not None]
        if ends and not self.measures:
            raise PrunerError(f"effort=draft measures nothing: leave budget.{ends[0]}= out")
        # no seconds and no patience: a single operator spends its trials
        own: dict[str, Any] = {"trials": self.trials}
        if num_tasks is not None:
            own = {
                "trials": self.trials_per_task * num_tasks,
                "seconds": self.seconds,
                "patience": self.patience,
            }
        # None of `given` leaves the effort's value
        return TuneBudget(**own | {k: v for k, v in given.items() if v is not None})
