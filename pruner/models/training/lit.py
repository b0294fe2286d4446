"""Lightning's module of a training: step, log, optimise."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pruner.data.frozen import Side
from pruner.errors import DataError
from pruner.models.judging.judge import ranking_metrics
from pruner.models.networks.layers import joined
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.loading import Loader, Share
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import DIVERGED, Diverged, NeuralRanker
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import EpochSampler


class RankingModule(pl.LightningModule):
    """Train a ranker on two `sides` of a split; validation judges whole tasks.

    It logs ``valid/<metric>``. Validation ranks the programs of each task, so splits by task and
    inside tasks both work. Raises DataError when nothing is left to train or validate on.
    """

    def __init__(
        self,
        ranker: NeuralRanker,
        recipe: Recipe,
        store: ProgramTable,
        sides: Mapping[Side, Tensor],
    ) -> None:
        super().__init__()
        self.ranker, self.recipe, self.store = ranker, recipe, store
        self.learned, self.judged = sides["train"], sides["valid"]
        if not len(self.learned) or not len(self.judged):
            raise DataError(
                f"split: {len(self.learned)} programs to train on and {len(self.judged)} to "
                "validate on; both need some"
            )

    def train_dataloader(self) -> Loader:
        """Batches of the plan; each process takes its share of every batch."""
        recipe, task = self.recipe, self.store.task[self.learned]
        seed = recipe.seed if recipe.batch_seed is None else recipe.batch_seed
        sampler = EpochSampler(recipe.batches, self.learned, task, seed=seed)
        return self.store.loader(sampler, Share(self.trainer.global_rank, self.trainer.world_size))

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """A placeholder batch: whole validation tasks are scored at the end of an epoch."""
        return DataLoader(TensorDataset(torch.zeros(1)), batch_size=None, collate_fn=tuple)

    def training_step(self, batch: LabelledBatch, _: int) -> Float[Tensor, ""]:
        """Return the loss of a batch, also where several processes share it."""
        # Joined before the loss: a list may have programs of several processes.
        score = joined(self.ranker(batch.programs), batch.first, len(batch.label))
        loss: Tensor = self.recipe.loss(score, batch.label, batch.task)
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(score))
        return loss

    def validation_step(self, task: Tensor, _: int) -> None:
        """Do nothing: metrics need whole tasks, scored at the epoch's end."""

    def on_validation_epoch_end(self) -> None:
        """Score every validation task and log the metrics; every process scores all.

        Raises Diverged for scores that are not finite, before the epoch can become the best.
        """
        epoch = self.trainer.current_epoch + 1  # as displayed
        diverged = Diverged(f"the model has diverged after epoch {epoch}: {DIVERGED}")
        try:
            # In full precision: in half precision, many programs would tie.
            with torch.autocast(self.device.type, enabled=False):
                scored = self.ranker.score_tasks(self.store, self.judged)
        except Diverged as error:
            raise diverged from error
        if not all(np.isfinite(task.score).all() for task in scored):
            raise diverged
        for name, value in ranking_metrics(scored).items():
            self.log(f"valid/{name}", value, batch_size=1, sync_dist=False)

    def configure_optimizers(self) -> Any:
        """Make the optimiser and, if given, the schedule over all steps."""
        optimizer = self.recipe.optimizer(self.ranker.parameters())
        if self.recipe.schedule is None:
            return optimizer
        # Over all epochs, so that a resumed fit continues the same schedule.
        schedule = self.recipe.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
