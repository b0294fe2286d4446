"""Progress of a training on stderr: a live bar on a terminal, one line an epoch elsewhere."""

import sys
from typing import Any

import pytorch_lightning as pl
from rich.progress import Progress

from pruner.cli.output import say
from pruner.cli.progress import live_bar
from pruner.models.programs.batch import LabelledBatch
from pruner.models.training.training import Throughput


class TrainingProgress(Throughput):
    """Show epochs, loss, validation metrics and training throughput."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._validated = False
        self._context: Any = None
        self._progress: Progress | None = None
        self._bar: Any = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar."""
        self._context = live_bar()
        self._progress = self._context.__enter__()
        self._bar = self._progress.add_task(self.name, total=None, note="")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of an epoch."""
        if self._progress is not None:
            title = f"{self.name} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            total = int(trainer.num_training_batches)
            self._progress.update(self._bar, description=title, completed=0, total=total)
        self._validated = False
        super().on_train_epoch_start(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the epoch has validation metrics."""
        self._validated = True

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: LabelledBatch,
        batch_idx: int,
    ) -> None:
        """Count one batch."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._progress is not None:
            self._progress.advance(self._bar)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell what the epoch reached."""
        metrics, parts = trainer.callback_metrics, {"loss": "train/loss"}
        if self._validated:  # else the metrics are those of an earlier epoch
            parts |= {"top1": "valid/top1", "pairwise": "valid/pairwise_accuracy"}
        shown = [f"{word} {float(metrics[key]):.3f}" for word, key in parts.items()]
        note = "  ".join([*shown, f"{self.programs_per_second:,.0f} programs/s"])
        if self._progress is not None:
            self._progress.update(self._bar, note=note)
        if not sys.stderr.isatty():
            say(f"{self.name} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {note}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the bar, also after an error."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = self._progress = None
