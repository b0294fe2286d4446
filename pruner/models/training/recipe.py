"""Everything that decides what a training computes, as one typed value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from pruner.errors import PrunerError
from pruner.models.networks.pacm import PaCM
from pruner.models.registry import ModelFactory
from pruner.models.training.lit import MakeOptimizer, MakeSchedule
from pruner.models.training.losses import LambdaRank, RankingLoss
from pruner.models.training.sampler import BatchPlan, TaskBatches
from pruner.models.training.schedules import warmup_cosine

Pick = Literal["random", "spread", "tasks"]
Keep = Literal["best", "last"]


def _adamw() -> MakeOptimizer:
    return partial(torch.optim.AdamW, lr=7e-4, weight_decay=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to fit a model; the defaults are those of ``train.py``.

    `model` is a class of :mod:`pruner.models.registry` or one of your own, or a
    `functools.partial` of it with keyword arguments. Trees take `seed`, `num_threads` and what
    chooses programs; the rest is for networks.

    `relative` and `scale` say what a network sees: features relative to the candidates of the same
    task, as standard scores or divided by their maximum. The epoch with the best `monitor` of the
    validation tasks is kept, or the last one (`keep`); with `patience` a fit ends after so many
    epochs in which the moving average of the training loss did not fall. `train_share` of the
    training programs is learnt from: drawn from every task ("random"), thinned where latencies
    crowd ("spread"), or whole "tasks". Test tasks with fewer than `min_programs` programs are not
    judged. `trainer` has further arguments of Lightning's ``Trainer``. `num_threads` of the CPU
    (None: as many as torch has now): more of them round sums otherwise, and another epoch may be
    the best.

    With `average_epochs` the mean of the weights after each of the last so many epochs counts as
    one more epoch (:mod:`pruner.models.training.averaging`). With `soup` so many more fits of
    `soup_epochs` epochs, each with other batches, go on from the epoch that is kept, and the mean
    of those that help is the model (:mod:`pruner.models.training.soup`). `batch_seed` draws the
    batches, where they are to differ and nothing else is (None: `seed` does).
    """

    model: ModelFactory = PaCM
    loss: RankingLoss = field(default_factory=LambdaRank)
    optimizer: MakeOptimizer = field(default_factory=_adamw)
    schedule: MakeSchedule | None = warmup_cosine
    batches: BatchPlan = field(default_factory=lambda: TaskBatches(per_task=256))
    relative: bool = True
    scale: Literal["standard", "max"] = "standard"
    monitor: str = "valid/top1_task_mean"
    keep: Keep = "best"
    patience: int | None = None
    train_share: float = 1.0
    train_pick: Pick = "random"
    min_programs: int = 1
    epochs: int = 12
    trainer: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch_seed: int | None = None
    num_threads: int | None = 1
    average_epochs: int = 0
    soup: int = 0
    soup_epochs: int = 4

    def __post_init__(self) -> None:
        """Raises `PrunerError` for numbers that mean nothing."""
        if min(self.average_epochs, self.soup) < 0 or self.soup_epochs < 1:
            raise PrunerError(
                f"schedule: average_epochs={self.average_epochs}, soup={self.soup} must be 0 or "
                f"more, soup_epochs={self.soup_epochs} 1 or more"
            )
        if self.average_epochs and self.patience is not None:
            raise PrunerError(
                f"patience={self.patience}: a fit that ends early has no last epochs to average; "
                "leave patience= out, or choose a schedule without average_epochs"
            )
