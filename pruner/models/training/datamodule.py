"""The one DataModule: a store of programs, and which tasks train, validate and test."""

from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pruner.errors import DataError
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.store import ProgramStore
from pruner.models.training.sampler import BatchPlan, EpochSampler


class _StoreView(Dataset[LabelledBatch]):
    """Hands a store's batches to a DataLoader, one gather for each index tensor."""

    def __init__(self, store: ProgramStore) -> None:
        self._store = store

    def __getitem__(self, index: Tensor) -> LabelledBatch:
        return self._store.batch(index)


def _as_is(batch: Any) -> Any:
    return batch


class RankingData(pl.LightningDataModule):
    """Programs of `store`; `train` and `valid` [program] index those to fit and to validate on.

    Validation ranks the `valid` programs of each task, so splits by task and inside tasks both
    work. Raises DataError when nothing is left to train or validate on.
    """

    def __init__(
        self,
        store: ProgramStore,
        *,
        train: Int[Tensor, " train"],
        valid: Int[Tensor, " valid"],
        batches: BatchPlan,
        seed: int,
    ) -> None:
        super().__init__()
        if not len(train) or not len(valid):
            raise DataError(
                f"split: {len(train)} programs to train on and {len(valid)} to validate on; "
                "both need some"
            )
        self.store = store
        self.train = train
        self.valid = valid
        self.batches = batches
        self.seed = seed

    def train_dataloader(self) -> DataLoader[LabelledBatch]:
        """Batches of the plan; each process of a distributed run takes its own share."""
        trainer = self.trainer
        sampler = EpochSampler(
            self.batches,
            self.train,
            self.store.task[self.train],
            seed=self.seed,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )
        view = _StoreView(self.store)
        return DataLoader(view, sampler=sampler, batch_size=None, collate_fn=_as_is)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """One token: the module scores the validation tasks itself, whole."""
        return DataLoader(TensorDataset(torch.zeros(1)), batch_size=None, collate_fn=_as_is)
