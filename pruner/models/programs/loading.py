"""Load the batches of a fit, complete or shared among processes.

Features on disk are loaded task by task, once an epoch, from the first batch to the last that needs
the task: all batches of an epoch are known before the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from pruner.models.programs.batch import LabelledBatch
from pruner.models.training.sampler import EpochSampler

if TYPE_CHECKING:
    from pruner.models.programs.program_table import ProgramTable

_AHEAD = 4  # tasks that are loaded before they are needed
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Share:
    """Part number `rank` of `of` equal parts of a batch, for one process."""

    rank: int = 0
    of: int = 1

    def bounds(self, num: int) -> tuple[int, int]:
        """First program of the share of `num`, and its end.

        >>> [Share(rank, 3).bounds(8) for rank in range(3)]
        [(0, 3), (3, 6), (6, 8)]
        """
        each, more = divmod(num, self.of)
        first = self.rank * each + min(self.rank, more)
        return first, first + each + (self.rank < more)

    def __call__(self, index: Tensor) -> Tensor:
        """This part of the programs `index`."""
        first, end = self.bounds(len(index))
        return index[first:end]


WHOLE = Share()


class Loader:
    """Batches made from all indices of an epoch; Lightning sets that of its `sampler`."""

    def __init__(
        self,
        batches: Callable[[list[Tensor]], Iterator[LabelledBatch]],
        sampler: EpochSampler,
    ) -> None:
        self.sampler = sampler
        self._batches = batches

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[LabelledBatch]:
        # A generator: the indices are drawn at the first batch, since Lightning sets the epoch
        # after this call.
        yield from self._batches(list(self.sampler))


def ahead(load: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """Load the items in order, in a thread ahead of their use."""
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            waiting.append(thread.submit(load, item))
            # The bound keeps memory flat: a fast disk would otherwise load the whole epoch.
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def needs_of(task: Tensor, indices: Sequence[Tensor]) -> tuple[list[Tensor], dict[int, int]]:
    """The tasks that an epoch's batches need; `task` [N] covers the table's programs.

    Returns the programs of every task, in the order in which tasks are first needed, and the number
    of the last batch that needs a task, by task number.
    """
    if not indices:
        return [], {}
    # Sorted, the programs of a task are neighbours, as tasks are in the table.
    programs, order = torch.cat(list(indices)).sort()
    sizes = torch.tensor([len(index) for index in indices])
    batch = torch.repeat_interleave(torch.arange(len(indices)), sizes)[order]
    numbers, which, counts = torch.unique_consecutive(
        task[programs], return_inverse=True, return_counts=True
    )
    last = torch.zeros(len(numbers), dtype=torch.long).scatter_reduce(0, which, batch, "amax")
    first = torch.full((len(numbers),), len(indices)).scatter_reduce(0, which, batch, "amin")
    parts = programs.split(counts.tolist())
    ordered = [parts[place] for place in first.argsort(stable=True).tolist()]
    return ordered, dict(zip(numbers.tolist(), last.tolist(), strict=True))


def streamed_batches(
    table: ProgramTable, indices: Sequence[Tensor], share: Share
) -> Iterator[LabelledBatch]:
    """The batches of an epoch for a table with features on disk."""
    own = [share(index) for index in indices]
    needed, last = needs_of(table.task, own)
    arriving = zip(needed, table.loaded(needed), strict=True)
    alive: dict[int, tuple[Tensor, ProgramTable]] = {}
    for number, (index, mine) in enumerate(zip(indices, own, strict=True)):
        tasks = table.task[mine]
        present = tasks.unique().tolist()
        # Tasks arrive in the order of first need, so the missing tasks are the next to arrive.
        while not alive.keys() >= set(present):
            programs, found = next(arriving)
            alive[int(table.task[programs[0]])] = programs, found
        places = [(tasks == task).nonzero().squeeze(1) for task in present]
        parts = [
            alive[task][1].take(torch.searchsorted(alive[task][0], mine[where]))
            for task, where in zip(present, places, strict=True)
        ]
        if parts:
            # The parts are concatenated by task; this restores the mixed order of the batch.
            mixed = type(table).concatenate(parts).programs(torch.cat(places).argsort())
        else:  # more processes than programs in the batch
            mixed = table.programs(mine)
        yield LabelledBatch(
            programs=replace(mixed, platform=table.platform[tasks], platforms=table.platforms),
            label=table.label[index],
            task=table.task[index],
            index=index,
            first=share.bounds(len(index))[0],
        )
        for task in present:
            if last[task] == number:
                del alive[task]
