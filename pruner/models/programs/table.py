"""Measured programs without their features: what they are of, how fast they were, on which side.

Splits, batches and labels need no more than this, some 60 bytes a program. Where the features are
is the business of the classes below: :class:`~pruner.models.programs.store.ProgramStore` holds them
in memory, :class:`~pruner.models.programs.vectors.VectorStore` computes them where they are read.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pruner.data.tasks import TaskKey
from pruner.models.programs.loading import EpochIndices, Loader, Share
from pruner.models.programs.scaler import ColumnScaler

if TYPE_CHECKING:
    from pruner.models.programs.store import ProgramStore

Scale = Literal["standard", "max"]


@dataclass(frozen=True, slots=True)
class TaskView:
    """Some `programs` of one task of a table, which `store` holds as its programs `own`."""

    programs: Tensor
    store: "ProgramStore"
    own: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramTable(ABC):
    """Programs of many tasks; programs of one task are neighbours, tasks in the given order.

    `task` [N], `latency_s` [N] (float64), `line` [N], `digest` uint64 [N], `timed_s` [N, 2] (two
    timings minutes apart, or NaN). `label` [N]: best latency of the task / latency. A program that
    failed has an infinite latency: its label is 0.
    """

    keys: tuple[TaskKey, ...]
    task: Int[Tensor, " program"]
    latency_s: Float[Tensor, " program"]
    line: Int[Tensor, " program"]
    digest: np.ndarray
    timed_s: np.ndarray
    num_failed: int = 0
    label: Float[Tensor, " program"] = field(init=False)
    task_start: Int[Tensor, " boundary"] = field(init=False)
    platforms: tuple[str, ...] = field(init=False)
    platform: Int[Tensor, " task"] = field(init=False)

    def __post_init__(self) -> None:
        counts = torch.bincount(self.task, minlength=len(self.keys))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        best = torch.full((len(self.keys),), torch.inf, dtype=self.latency_s.dtype)
        best = best.scatter_reduce(0, self.task, self.latency_s, "amin")
        label = (best[self.task] / self.latency_s).float()
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "task_start", starts)
        platforms = tuple(sorted({key.platform for key in self.keys}))
        object.__setattr__(self, "platforms", platforms)
        numbers = torch.tensor([platforms.index(key.platform) for key in self.keys])
        object.__setattr__(self, "platform", numbers)

    @property
    def num_programs(self) -> int:
        """Programs of all tasks."""
        return len(self.task)

    def programs_of(self, tasks: Sequence[int]) -> Int[Tensor, " program"]:
        """Indices of all programs of the given tasks, in the order of the table."""
        starts, ends = self.task_start[:-1], self.task_start[1:]
        ranges = [torch.arange(int(starts[t]), int(ends[t])) for t in sorted(tasks)]
        return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.long)

    def key_of(self, programs: Int[Tensor, " program"]) -> TaskKey:
        """The task of programs that all belong to one."""
        return self.keys[int(self.task[programs[0]])]

    def by_task(self, index: Int[Tensor, " program"]) -> list[Int[Tensor, " _"]]:
        """Split program indices into one ascending tensor for each task that occurs."""
        index = index.sort().values
        _, counts = torch.unique_consecutive(self.task[index], return_counts=True)
        return list(index.split(counts.tolist()))

    @property
    @abstractmethod
    def num_dataflow_rows(self) -> int:
        """8 or 10."""

    @property
    @abstractmethod
    def has_dataflow(self) -> bool:
        """Whether some program has a dataflow pattern."""

    @abstractmethod
    def relative(self) -> "ProgramTable":
        """The same programs, features relative to the mean of their task's programs here.

        See :mod:`pruner.models.programs.relative`.
        """

    @abstractmethod
    def fit_scaler(self, index: Int[Tensor, " program"], kind: Scale = "max") -> ColumnScaler:
        """Column statistics of the given (training) programs, or of a sample of them."""

    @abstractmethod
    def each_task(self, index: Int[Tensor, " program"]) -> Iterator[TaskView]:
        """The given programs with their features, task by task."""

    @abstractmethod
    def loader(self, sampler: EpochIndices, share: Share) -> Loader:
        """Batches of what `sampler` yields, of which this process has the features of its share."""

    @abstractmethod
    def in_memory(self) -> "ProgramStore":
        """All features at once; raises PrunerError where they are not to be in memory."""
