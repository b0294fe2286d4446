"""Convert training options to a typed recipe, loggers, and progress on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from rich.progress import Progress

from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, plain
from pruner.cli.shared.output import say
from pruner.cli.shared.progress import clock, counting, live_bar
from pruner.cli.shared.sweep import sweep_name
from pruner.models.judging.judge import Report
from pruner.models.registry import ModelFactory
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import Throughput, build_network
from pruner.models.trees.xgboost import Grown
from pruner.study.training_run import Fold, Watch, Watching


def recipe_of(config: DictConfig) -> Recipe:
    """Make the recipe of ``train.py``'s options; raise `PrunerError` if a constructor fails."""
    build_network(lambda: build(config.model), seed=0)
    build(config.optimizer, _partial_=False, params=[torch.zeros(1, requires_grad=True)])
    trainer = plain(config.trainer)
    return Recipe(
        model=model_factory(config.model),
        loss=build(config.loss),
        optimizer=build(config.optimizer),
        schedule=build(config.schedule.factory) if config.schedule.factory else None,
        batches=build(config.batches),
        relative=bool(config.inputs.relative),
        scale=config.inputs.scale,
        monitor=config.monitor,
        keep=config.keep,
        patience=config.patience,
        train_share=config.train_share,
        train_pick=config.train_pick,
        min_programs=config.min_programs,
        epochs=trainer.pop("max_epochs"),
        trainer={name: value for name, value in trainer.items() if name != "_target_"},
        seed=config.seed,
        num_threads=config.num_threads,
        average_epochs=config.schedule.average_epochs,
        soup=config.schedule.soup,
        soup_epochs=config.schedule.soup_epochs,
    )


def model_factory(config: Any) -> ModelFactory:
    """Bind a model's class to the arguments of the options."""
    factory: ModelFactory = build({**plain(config), "_partial_": True, "_convert_": "all"})
    return factory


class TrainingProgress(Throughput):
    """Show epochs, loss, validation metrics and training throughput."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._validated = False
        self._started, self._first = 0.0, 0  # the clock and the epoch of the fit's start
        self._context: Any = None
        self._progress: Progress | None = None
        self._bar: Any = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar."""
        self._started, self._first = time.monotonic(), trainer.current_epoch
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

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Count a batch."""
        super().on_train_batch_end(*args, **kwargs)
        if self._progress is not None:
            self._progress.advance(self._bar)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the metrics of the epoch."""
        metrics, parts = trainer.callback_metrics, {"loss": "train/loss"}
        if self._validated:  # else the metrics are those of an earlier epoch
            parts |= {
                "valid top1 (task mean)": "valid/top1_task_mean",
                "pairwise": "valid/pairwise_accuracy",
            }
        shown = [f"{word} {float(metrics[key]):.3f}" for word, key in parts.items()]
        done, most = trainer.current_epoch + 1, trainer.max_epochs or 0
        each_s = (time.monotonic() - self._started) / (done - self._first)  # with validation
        speed = f"{self.programs_per_second:,.0f} programs/s"
        note = "  ".join([*shown, speed, f"{clock(each_s * (most - done))} left"])
        if self._progress is not None:
            self._progress.update(self._bar, note=note)
        if not sys.stderr.isatty():
            say(f"{self.name} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {note}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the bar, also after an error."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = self._progress = None


def watching(config: DictConfig) -> Watching:
    """Open progress on stderr and the logger of the options, for every fit."""

    @contextmanager
    def watched(fold: Fold) -> Iterator[Watch]:
        names = fold.folder.parts[-1 - len(Path(fold.name).parts) :]
        targets = (config.model._target_, config.loss._target_)
        tags = [config.platform.name, *(t.rpartition(".")[2] for t in targets), fold.split.name]
        group = sweep_name() or (names[0] if fold.name else None)  # by sweep, else by run
        about = loggers.About(config=plain(config), group=group, tags=tags)
        logger = build(config.logger)(folder=fold.folder, name="/".join(names), about=about)

        def judged(metrics: Any, report: Report, checkpoint: Path) -> None:
            loggers.report(logger, metrics, report.rows, checkpoint)

        name = fold.name or fold.folder.name
        try:
            with trees_counted(f"{name} trees") as grown:
                progress = TrainingProgress(name)
                yield Watch(callbacks=[progress], loggers=[logger], grown=grown, judged=judged)
        finally:
            loggers.close(logger)

    return watched


@contextmanager
def trees_counted(what: str) -> Iterator[Grown]:
    """Count rounds of trees; the first opens a display, as networks have."""
    with ExitStack() as stack:
        counts: list[Grown] = []

        def grown(done: int, total: int) -> None:
            if not counts:
                counts.append(stack.enter_context(counting(what)))
            counts[0](done, total)

        yield grown
