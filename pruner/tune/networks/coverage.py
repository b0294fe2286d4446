"""Which tasks of a network the engine computes in batches, and which go through TVM's replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.tune.networks.tasks import NetworkTask
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces

_PROBES = 1  # random programs of a space; a run tries more of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many design spaces a task has, how many of them are batched, and why the others not."""

    spaces: int
    batched: int
    reasons: Sequence[str] = ()

    @property
    def whole(self) -> bool:
        """Whether there are spaces, all of them batched."""
        return 0 < self.spaces == self.batched

    def __str__(self) -> str:
        """One word, or two numbers where only some spaces are batched."""
        if not self.spaces:
            return "none"
        if 0 < self.batched < self.spaces:
            return f"{self.batched} of {self.spaces}"
        return "batched" if self.batched else "replayed"


def coverage(task: NetworkTask, target: Any) -> Coverage:
    """What the spaces of a task are; costs tenths of a second."""
    found = refusals(task, target)
    reasons = [str(refused) for refused in found if refused is not None]
    return Coverage(
        spaces=len(found), batched=len(found) - len(reasons), reasons=sorted(set(reasons))
    )


def refusals(task: NetworkTask, target: Any) -> list[UnsupportedProgram | None]:
    """Why the engine refuses each space of a task; None for those that it batches."""
    return [_refusal(design) for design in design_spaces(task.module, target)]


def _refusal(design: DesignSpace) -> UnsupportedProgram | None:
    try:
        BatchedSpace(design, probes=_PROBES)
    except UnsupportedProgram as refused:
        return refused
    return None
