"""The DataModule: a table of programs, and its training and validation programs."""

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pruner.errors import DataError
from pruner.models.programs.loading import Loader, Share, as_is
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.sampler import BatchPlan, EpochSampler


class RankingData(pl.LightningDataModule):
    """Programs of `store`; `train` and `valid` [program] index two sides.

    Validation ranks the `valid` programs of each task, so splits by task and inside tasks both
    work. Raises DataError when nothing is left to train or validate on.
    """

    def __init__(
        self,
        store: ProgramTable,
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

    def train_dataloader(self) -> Loader:
        """Batches of the plan; each process takes its share of every batch."""
        sampler = EpochSampler(
            self.batches, self.train, self.store.task[self.train], seed=self.seed
        )
        trainer = self.trainer
        # Without a trainer the loader is used alone, with complete batches.
        share = Share(trainer.global_rank, trainer.world_size) if trainer else Share()
        return self.store.loader(sampler, share)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """A placeholder batch: the module itself scores complete validation tasks."""
        return DataLoader(TensorDataset(torch.zeros(1)), batch_size=None, collate_fn=as_is)
