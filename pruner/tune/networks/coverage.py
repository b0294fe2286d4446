"""Report which tasks the engine computes in batches, and TVM replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces

_PROBES = 1  # random programs of a space; a run tries more of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The number of a task's design spaces, and the reasons of refusals.

    A reason starts with its code; details follow after a colon.
    """

    spaces: int
    refused: Sequence[str] = ()

    @property
    def batched(self) -> int:
        """Number of spaces with programs that the engine computes."""
        return self.spaces - len(self.refused)

    @property
    def reasons(self) -> list[str]:
        """The different reasons, sorted."""
        return sorted(set(self.refused))

    @property
    def whole(self) -> bool:
        """True if there are spaces, and all are batched."""
        return 0 < self.spaces == self.batched

    def __str__(self) -> str:
        """Summarise in a word, or in two numbers if partly batched."""
        if not self.spaces:
            return "none"
        if 0 < self.batched < self.spaces:
            return f"{self.batched} of {self.spaces}"
        return "batched" if self.batched else "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShare:
    """The tasks with design spaces that TVM replays, and their share.

    ``share``: the arithmetic of these tasks, relative to the tasks with opened spaces; None: no
    task was opened, or the opened tasks have no arithmetic.
    """

    tasks: Sequence[str]
    share: float | None

    @staticmethod
    def of(spaces: Iterable[tuple[str, float, int | None]]) -> ReplayShare:
        """Summarise tasks, each given by name, operations and replayed spaces.

        The number of spaces that TVM replays is None where the spaces were not opened.
        """
        opened = [(name, flops, num) for name, flops, num in spaces if num is not None]
        total = sum(flops for _, flops, _ in opened)
        slow = sum(flops for _, flops, num in opened if num)
        return ReplayShare(
            tasks=[name for name, _, num in opened if num],
            share=slow / total if total else None,
        )

    def __str__(self) -> str:
        """Summarise in a line; empty where nothing is replayed."""
        if not self.tasks:
            return ""
        tasks = "a task" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks"
        share = "no" if self.share is None else f"{self.share:.1%} of the"
        return (
            f"{share} arithmetic is in {tasks} with at least one design space that only TVM can "
            f"replay: {', '.join(self.tasks)}"
        )


def coverage(task: NetworkTask, target: Any) -> Coverage:
    """Open the spaces of a task, which takes tenths of a second."""
    refused, designs = [], list(design_spaces(task.module, target))
    for design in designs:
        try:
            BatchedSpace(design, probes=_PROBES)
        except UnsupportedProgram as reason:
            refused.append(str(reason))
    return Coverage(spaces=len(designs), refused=refused)
