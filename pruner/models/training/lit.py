"""Lightning's module (step, log, optimise) and data (training and validation programs)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from pruner.errors import DataError
from pruner.models.collectives import joined
from pruner.models.judging.judge import ranking_metrics
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.loading import Loader, Share
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import DIVERGED, Diverged, NeuralRanker
from pruner.models.training.losses import RankingLoss
from pruner.models.training.sampler import BatchPlan, EpochSampler

MakeOptimizer = Callable[[Iterable[Tensor]], Optimizer]
MakeSchedule = Callable[[Optimizer, int], LRScheduler]


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
        self.store, self.train, self.valid = store, train, valid
        self.batches, self.seed = batches, seed

    def train_dataloader(self) -> Loader:
        """Batches of the plan; each process takes its share of every batch."""
        task, trainer = self.store.task[self.train], self.trainer
        sampler = EpochSampler(self.batches, self.train, task, seed=self.seed)
        # Without a trainer the loader is used alone, with complete batches.
        share = Share(trainer.global_rank, trainer.world_size) if trainer else Share()
        return self.store.loader(sampler, share)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """A placeholder batch: the module itself scores complete validation tasks."""
        return DataLoader(TensorDataset(torch.zeros(1)), batch_size=None, collate_fn=tuple)


class RankingModule(pl.LightningModule):
    """Train a ranker with a ranking loss; validation judges whole tasks.

    It logs ``valid/<metric>``. `optimizer` makes an optimiser from parameters; `schedule`, if
    given, a learning-rate schedule from (optimiser, total steps), stepped after every batch.
    """

    def __init__(
        self,
        ranker: NeuralRanker,
        *,
        loss: RankingLoss,
        optimizer: MakeOptimizer,
        schedule: MakeSchedule | None = None,
    ) -> None:
        super().__init__()
        self.ranker = ranker
        self.loss = loss
        self._make_optimizer = optimizer
        self._make_schedule = schedule

    def training_step(self, batch: LabelledBatch, _: int) -> Float[Tensor, ""]:
        """Return the loss of a batch, also where several processes share it."""
        # Joined before the loss: a list may have programs of several processes.
        score = joined(self.ranker(batch.programs), batch.first, len(batch.label))
        loss: Tensor = self.loss(score, batch.label, batch.task)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(score))
        return loss

    def validation_step(self, task: Tensor, _: int) -> None:
        """Do nothing: metrics need whole tasks, scored at the epoch's end."""

    def on_validation_epoch_end(self) -> None:
        """Score every validation task and log the metrics; every process scores all.

        Raises Diverged for scores that are not finite, before the epoch can become the best.
        """
        data: RankingData = self.trainer.datamodule  # type: ignore[attr-defined]
        epoch = self.trainer.current_epoch + 1  # as displayed
        diverged = Diverged(f"the model has diverged after epoch {epoch}: {DIVERGED}")
        try:
            # In full precision: in half precision, many programs would tie.
            with torch.autocast(self.device.type, enabled=False):
                scored = self.ranker.score_tasks(data.store, data.valid)
        except Diverged as error:
            raise diverged from error
        if not all(np.isfinite(task.score).all() for task in scored):
            raise diverged
        for name, value in ranking_metrics(scored).items():
            self.log(f"valid/{name}", value, batch_size=1, sync_dist=False)

    def configure_optimizers(self) -> Any:
        """Make the optimiser and, if given, the schedule over all steps."""
        optimizer = self._make_optimizer(self.ranker.parameters())
        if self._make_schedule is None:
            return optimizer
        # Over all epochs, so that a resumed fit continues the same schedule.
        schedule = self._make_schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
