"""How batches come to a fit: in the order of a sampler, complete or a share for each process.

Where features stay on disk, the batches of an epoch are known before the first: so is when a task
is first needed, and when it is not needed any more. Tasks are loaded in the order of the first,
each once, and dropped behind the last batch that has one of their programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pruner.models.programs.batch import LabelledBatch

if TYPE_CHECKING:
    from pruner.models.programs.table import ProgramTable

_AHEAD = 4  # tasks that are loaded before a reader asks for them
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Share:
    """Part number `rank` of `of` equal parts, give or take one program.

    Every process of a fit knows the labels of whole batches, and has the features of its share.
    """

    rank: int = 0
    of: int = 1

    def bounds(self, num: int) -> tuple[int, int]:
        """First program of the share and the one behind its last, of `num`.

        >>> [Share(rank, 3).bounds(8) for rank in range(3)]
        [(0, 3), (3, 6), (6, 8)]
        """
        each, more = divmod(num, self.of)
        first = self.rank * each + min(self.rank, more)
        return first, first + each + (self.rank < more)

    def __call__(self, index: Tensor) -> Tensor:
        """This part of some programs."""
        first, end = self.bounds(len(index))
        return index[first:end]


WHOLE = Share()


class EpochIndices(Sized, Iterable[Tensor], Protocol):
    """Programs of every batch of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next."""


class Loader(Sized, Iterable[LabelledBatch], Protocol):
    """Batches of an epoch; Lightning sets the epoch of its `sampler`."""

    @property
    def sampler(self) -> Any:
        """What chooses the programs."""


class _Gathered(Dataset[LabelledBatch]):
    """One gather for each index tensor."""

    def __init__(self, batch: Callable[[Tensor], LabelledBatch]) -> None:
        self._batch = batch

    def __getitem__(self, index: Tensor) -> LabelledBatch:
        return self._batch(index)


def as_is(batch: Any) -> Any:
    """What a DataLoader is to do with a batch: nothing."""
    return batch


def gathering(batch: Callable[[Tensor], LabelledBatch], sampler: EpochIndices) -> Loader:
    """Batches gathered here, one after another."""
    return DataLoader(_Gathered(batch), sampler=sampler, batch_size=None, collate_fn=as_is)


class Arriving:
    """Batches that `batches` makes of an epoch's indices, known as a whole before the first."""

    def __init__(
        self,
        batches: Callable[[list[Tensor]], Iterator[LabelledBatch]],
        sampler: EpochIndices,
    ) -> None:
        self.sampler = sampler
        self._batches = batches

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[LabelledBatch]:
        # Nothing happens before the first batch is asked for: Lightning sets the epoch after this.
        yield from self._batches(list(self.sampler))


def ahead(load: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """What `load` makes of the items, in order: a thread loads the next while this one is read."""
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            waiting.append(thread.submit(load, item))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True, slots=True)
class Needs:
    """`parts`: the programs of every task, in the order in which tasks are first needed.

    `last`: the number of the last batch that needs a task, by the number of the task.
    """

    parts: list[Tensor]
    last: dict[int, int]


def needs_of(task: Tensor, indices: Sequence[Tensor]) -> Needs:
    """Of the batches of an epoch; `task` [N] is that of every program of the table."""
    if not indices:
        return Needs([], {})
    programs, order = torch.cat(list(indices)).sort()
    sizes = torch.tensor([len(index) for index in indices])
    batch = torch.repeat_interleave(torch.arange(len(indices)), sizes)[order]
    numbers, which, counts = torch.unique_consecutive(
        task[programs], return_inverse=True, return_counts=True
    )
    last = torch.zeros(len(numbers), dtype=torch.long).scatter_reduce(0, which, batch, "amax")
    first = torch.full((len(numbers),), len(indices)).scatter_reduce(0, which, batch, "amin")
    parts = programs.split(counts.tolist())
    return Needs(
        [parts[place] for place in first.argsort(stable=True).tolist()],
        dict(zip(numbers.tolist(), last.tolist(), strict=True)),
    )


def streamed_batches(
    table: ProgramTable, indices: Sequence[Tensor], share: Share
) -> Iterator[LabelledBatch]:
    """The batches of an epoch of a table whose features are on disk."""
    own = [share(index) for index in indices]
    needs = needs_of(table.task, own)
    arriving = zip(needs.parts, table.loaded(needs.parts), strict=True)
    alive: dict[int, tuple[Tensor, ProgramTable]] = {}
    for number, (index, mine) in enumerate(zip(indices, own, strict=True)):
        tasks = table.task[mine]
        present = tasks.unique().tolist()
        while not alive.keys() >= set(present):
            programs, found = next(arriving)
            alive[int(table.task[programs[0]])] = programs, found
        places = [(tasks == task).nonzero().squeeze(1) for task in present]
        parts = []
        for task, where in zip(present, places, strict=True):
            programs, found = alive[task]
            parts.append(found.take(torch.searchsorted(programs, mine[where])))
        # The parts are one after another; the batch has them mixed.
        mixed = type(table).concatenate(parts).programs(torch.cat(places).argsort())
        yield LabelledBatch(
            programs=replace(mixed, platform=table.platform[tasks], platforms=table.platforms),
            label=table.label[index],
            task=table.task[index],
            index=index,
            first=share.bounds(len(index))[0],
        )
        for task in present:
            if needs.last[task] == number:
                del alive[task]
