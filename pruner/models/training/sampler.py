"""Choose the programs of each training batch.

LambdaRank compares programs inside a list, so the composition of batches is part of the model.
Every epoch is a pure function of (seed, epoch): a resumed run has the same batches, and under
distributed training the processes share them.

With a `window`, a batch mixes only programs of about so many tasks: tasks begin one after another
in random order, and the lists (or programs) of each are spread over the time in which so many
others begin. A fit that streams its features then has those of so many tasks in memory at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Sampler

Tasks = Int[Tensor, " program"]  # task numbers of the training programs
Positions = Int[Tensor, " position"]


class BatchPlan(ABC):
    """A division of an epoch into batches that mix `window` tasks (None: all)."""

    def __init__(self, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ValueError(f"batches.window: got {window}; need 1 or more, or null")
        self.window = window

    @abstractmethod
    def epoch(self, task: Tasks, generator: torch.Generator) -> list[Positions]:
        """Batches of positions into `task`, the task numbers of the training programs."""

    @abstractmethod
    def num_batches(self, task: Tasks) -> int:
        """Number of batches of every epoch."""

    def _order(
        self, task: Int[Tensor, " item"], generator: torch.Generator
    ) -> Int[Tensor, " item"]:
        """Items of the given tasks in random order, within the window."""
        if self.window is None:
            return torch.randperm(len(task), generator=generator)
        numbers, which = torch.unique(task, return_inverse=True)
        begin = torch.randperm(len(numbers), generator=generator)[which]
        later = torch.rand(len(task), generator=generator, dtype=torch.float64)
        # A task's items get times in [begin, begin + window): at any time about `window` tasks are
        # open.
        return torch.argsort(begin + self.window * later, stable=True)


class MixedBatches(BatchPlan):
    """Programs of all tasks shuffled together, as released; a single program left is dropped."""

    def __init__(self, *, programs: int = 512, window: int | None = None) -> None:
        super().__init__(window)
        if programs < 2:
            raise ValueError(f"batches.programs: got {programs}; a list needs at least 2")
        self.programs = programs

    def epoch(self, task: Tasks, generator: torch.Generator) -> list[Positions]:
        """Cut one random permutation."""
        order = self._order(task, generator)
        return [part for part in order.split(self.programs) if len(part) > 1]

    def num_batches(self, task: Tasks) -> int:
        """Full batches, and a last batch of at least two programs."""
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

    def __init__(
        self,
        *,
        tasks: int = 8,
        programs: int = 64,
        per_task: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(window)
        if tasks < 1 or programs < 2 or (per_task is not None and per_task < 2):
            raise ValueError(
                f"batches: got tasks={tasks}, programs={programs}, per_task={per_task}; "
                "need >= 1, >= 2 and >= 2"
            )
        self.tasks = tasks
        self.programs = programs
        self.per_task = per_task

    def epoch(self, task: Tasks, generator: torch.Generator) -> list[Positions]:
        """Deal every task into lists, shuffle the lists, join lists to batches."""
        # One shuffle of all programs, then a stable sort: each task's programs are shuffled by one
        # draw.
        shuffled = torch.randperm(len(task), generator=generator)
        by_task = shuffled[torch.argsort(task[shuffled], stable=True)]
        lists: list[Tensor] = []
        for everything in by_task.split(self._counts(task)):
            # Already shuffled, so a cut is a random draw.
            programs = everything[: self.per_task]
            lists.extend(programs.tensor_split(self._num_lists(len(programs))))
        # The window orders lists by their task; all programs of a list share it.
        owner = task[torch.stack([one[0] for one in lists])] if lists else task[:0]
        order = self._order(owner, generator).tolist()
        groups = [order[i : i + self.tasks] for i in range(0, len(order), self.tasks)]
        batches = [torch.cat([lists[i] for i in group]) for group in groups]
        return [batch for batch in batches if len(batch)]

    def num_batches(self, task: Tasks) -> int:
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
    """Yield batches of training programs `index`; Lightning calls `set_epoch` before each epoch."""

    def __init__(
        self,
        plan: BatchPlan,
        index: Int[Tensor, " program"],
        task: Tasks,
        *,
        seed: int,
    ) -> None:
        self.plan = plan
        self.index = index
        self.task = task
        self.seed = seed
        self.current_epoch = 0
        self._num_batches = plan.num_batches(task)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next batches."""
        self.current_epoch = epoch

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator()
        # Distinct streams for every (seed, epoch); epochs of one run never reach the factor.
        generator.manual_seed(self.seed * 1_000_003 + self.current_epoch)
        for batch in self.plan.epoch(self.task, generator):
            yield self.index[batch]
