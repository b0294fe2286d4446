"""The options that determine the result of a training, and a model to continue."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pruner.data.splits import TaskSplit
from pruner.errors import DataError, PrunerError
from pruner.features.dataflow import NUM_ROWS
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelFactory
from pruner.models.training.losses import LambdaRank, RankingLoss
from pruner.models.training.sampler import BatchPlan, TaskBatches
from pruner.models.training.schedules import warmup_cosine

Pick = Literal["random", "spread", "tasks"]
Keep = Literal["best", "last"]
MakeOptimizer = Callable[[Iterable[Tensor]], Optimizer]
MakeSchedule = Callable[[Optimizer, int], LRScheduler]  # by the number of steps
ADAMW: MakeOptimizer = partial(torch.optim.AdamW, lr=7e-4, weight_decay=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Options of a training, with the defaults of ``train.py``.

    Trees use `seed`, `num_threads` and the choice of programs; the other options are for networks.

    * ``model``: a class of ``pruner.models.registry``, your own class, or a `functools.partial`.
    * ``relative``, ``scale``: features relative to the candidates of the same task, as standard
      scores or divided by their maximum.
    * ``monitor``, ``keep``: keep the epoch with the best validation metric, or the last epoch.
    * ``patience``: stop after so many epochs without a lower moving average of the training loss.
    * ``train_share``, ``train_pick``: the share of the training programs to use, drawn from every
      task ("random"), thinned where latencies are dense ("spread"), or complete "tasks".
    * ``min_programs``: test tasks with fewer programs are left out.
    * ``trainer``: further arguments of Lightning's ``Trainer``.
    * ``num_threads``: CPU threads (None: torch's current number). More threads round sums
      differently, and another epoch may become the best.
    * ``average_epochs``: the mean of the weights of the last so many epochs counts as one more
      epoch (``pruner.models.training.averaging``).
    * ``soup``, ``soup_epochs``: continue from the kept epoch with so many more trainings, each with
      other batches, and average the helpful ones (``pruner.models.training.averaging``).
    * ``batch_seed``: the seed of the batches (None: `seed`).
    """

    model: ModelFactory = PaCM
    loss: RankingLoss = field(default_factory=LambdaRank)
    optimizer: MakeOptimizer = ADAMW
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
        if min(self.average_epochs, self.soup) < 0 or self.soup_epochs < 1:
            raise PrunerError(
                f"schedule: average_epochs={self.average_epochs}, soup={self.soup} must be 0 or "
                f"more, soup_epochs={self.soup_epochs} 1 or more"
            )
        ends = {"patience": self.patience, "trainer.max_steps": self.trainer.get("max_steps")}
        for name, end in ends.items():
            if self.average_epochs and end not in (None, -1):  # -1: no limit
                raise PrunerError(
                    f"{name}={end}: a fit that ends early has no last epochs to average; "
                    f"leave {name}= out, or choose a schedule without average_epochs"
                )


Scaling = Literal["keep", "renew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A trained network that a fit continues; it is copied, never changed.

    `inherited` has the fields of a :class:`CheckpointInfo` that the next model takes over.
    `scaling`: "keep" the column statistics that its weights learned with (as the release does when
    it fine-tunes), or "renew" them from the new training programs.
    """

    ranker: NeuralRanker
    info: CheckpointInfo
    inherited: dict[str, Any] = field(default_factory=dict)
    scaling: Scaling = "keep"

    @property
    def scale(self) -> Literal["standard", "max"]:
        """The kind of its normalisation."""
        return "standard" if self.ranker.scaler.is_standard else "max"

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with the model and the inputs that the weights need."""
        # The weights fix architecture and inputs; loss, batches and optimiser stay the recipe's.
        model = partial(type(self.ranker.network), **self.info.model.arguments)
        return replace(recipe, model=model, relative=self.ranker.relative, scale=self.scale)

    def check(self, programs: ProgramTable) -> None:
        """Raise DataError where programs have another number of dataflow rows."""
        wanted = NUM_ROWS[self.info.dataflow]
        if programs.num_dataflow_rows != wanted:
            raise DataError(
                f"the checkpoint learned with {wanted} dataflow rows, these programs have "
                f"{programs.num_dataflow_rows}; features.dataflow={self.info.dataflow} makes them"
            )

    def unseen(self, split: TaskSplit) -> TaskSplit:
        """The split without test tasks whose work the model has seen.

        Work on any platform counts. A split by rows stays as it is: it has every task on every
        side.
        """
        if split.by_rows:
            return split
        test = tuple(key for key in split.test if not self.info.has_seen_work(key))
        return replace(split, test=test)
