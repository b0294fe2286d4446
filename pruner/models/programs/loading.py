"""How batches come to a fit: in the order of a sampler, whole, or a share for each of several
processes."""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pruner.models.programs.batch import LabelledBatch


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
