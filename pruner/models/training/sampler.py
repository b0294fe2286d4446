"""Which programs meet in a training batch.

LambdaRank compares programs inside a list, so who meets whom is part of the model. Every epoch is
a pure function of (seed, epoch): a resumed run sees the same batches, and under distributed
training each process takes its own batches of the same common order.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Sampler


class BatchPlan(ABC):
    """How one epoch is cut into batches."""

    @abstractmethod
    def epoch(
        self, task: Int[Tensor, " program"], generator: torch.Generator
    ) -> list[Int[Tensor, " position"]]:
        """Return batches of positions into `task`, the task number of every training program."""

    @abstractmethod
    def num_batches(self, task: Int[Tensor, " program"]) -> int:
        """Number of batches of every epoch."""


class MixedBatches(BatchPlan):
    """Programs of all tasks shuffled together, as in the official code; a last single is left."""

    def __init__(self, *, programs: int = 512) -> None:
        if programs < 2:
            raise ValueError(f"batches.programs: got {programs}; a list needs at least 2")
        self.programs = programs

    def epoch(
        self, task: Int[Tensor, " program"], generator: torch.Generator
    ) -> list[Int[Tensor, " position"]]:
        """Cut one random permutation."""
        order = torch.randperm(len(task), generator=generator)
        return [part for part in order.split(self.programs) if len(part) > 1]

    def num_batches(self, task: Int[Tensor, " program"]) -> int:
        """Full batches, and a last one of at least two programs."""
        full, rest = divmod(len(task), self.programs)
        return full + (rest > 1)


class TaskBatches(BatchPlan):
    """Batches of `tasks` lists, each of about `programs` programs of one task.

    Every epoch each task's programs are shuffled and dealt into lists of equal size (give or take
    one, none above `programs`), the lists of all tasks are shuffled, and `tasks` of them make a
    batch. Two lists of a batch may come from the same task; they then form one list. With
    `per_task`, an epoch sees at most that many programs of a task, drawn anew each time: tasks
    with long logs then do not dominate, and epochs are short.
    """

    def __init__(self, *, tasks: int = 8, programs: int = 64, per_task: int | None = None) -> None:
        if tasks < 1 or programs < 2 or (per_task is not None and per_task < 2):
            raise ValueError(
                f"batches: got tasks={tasks}, programs={programs}, per_task={per_task}; "
                "need >= 1, >= 2 and >= 2"
            )
        self.tasks = tasks
        self.programs = programs
        self.per_task = per_task

    def epoch(
        self, task: Int[Tensor, " program"], generator: torch.Generator
    ) -> list[Int[Tensor, " position"]]:
        """Deal every task into lists, shuffle the lists, join them to batches."""
        shuffled = torch.randperm(len(task), generator=generator)
        by_task = shuffled[torch.argsort(task[shuffled], stable=True)]
        lists: list[Tensor] = []
        for everything in by_task.split(self._counts(task)):
            programs = everything[: self.per_task]
            lists.extend(programs.tensor_split(self._num_lists(len(programs))))
        order = torch.randperm(len(lists), generator=generator).tolist()
        groups = [order[i : i + self.tasks] for i in range(0, len(order), self.tasks)]
        batches = [torch.cat([lists[i] for i in group]) for group in groups]
        return [batch for batch in batches if len(batch)]

    def num_batches(self, task: Int[Tensor, " program"]) -> int:
        """Lists of all tasks, `tasks` a batch."""
        most = self.per_task
        counts = [count if most is None else min(count, most) for count in self._counts(task)]
        lists = sum(self._num_lists(count) for count in counts)
        return -(-lists // self.tasks)

    def _num_lists(self, count: int) -> int:
        return -(-count // self.programs)

    @staticmethod
    def _counts(task: Tensor) -> list[int]:
        counts = torch.bincount(task)
        return counts[counts > 0].tolist()


class EpochSampler(Sampler[Tensor]):
    """Yield index batches of one epoch; Lightning calls `set_epoch` before each.

    `index` are the training programs of the store and `task` their task numbers. With `world_size`
    processes each yields the same number of batches (at most world_size - 1 are left out).
    """

    def __init__(
        self,
        plan: BatchPlan,
        index: Int[Tensor, " program"],
        task: Int[Tensor, " program"],
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.plan = plan
        self.index = index
        self.task = task
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.current_epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next."""
        self.current_epoch = epoch

    def __len__(self) -> int:
        return self.plan.num_batches(self.task) // self.world_size

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator()
        # Distinct streams for every (seed, epoch); epochs of one run never reach the factor.
        generator.manual_seed(self.seed * 1_000_003 + self.current_epoch)
        batches = self.plan.epoch(self.task, generator)
        usable = len(self) * self.world_size
        for batch in batches[self.rank : usable : self.world_size]:
            yield self.index[batch]
