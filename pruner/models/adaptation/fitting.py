"""The fit of an online round: a plain loop over normalised programs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.training.losses import LambdaRank, RankingLoss
from pruner.models.training.recipe import MakeOptimizer
from pruner.models.training.sampler import BatchPlan, MixedBatches, TaskBatches

Penalty = Callable[[LabelledBatch, Float[Tensor, " program"]], Float[Tensor, ""]]
"""From a normalised batch and its scores to what is added to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Programs to fit on: a table, program numbers, and their normalisation."""

    store: ProgramTable
    index: Int[Tensor, " program"]
    scaler: ColumnScaler = field(default_factory=ColumnScaler)  # changes nothing

    @staticmethod
    def of(store: ProgramTable, ranker: NeuralRanker, index: Int[Tensor, " program"]) -> "Example":
        """Make absolute features relative where the ranker is."""
        seen = store.relative(ranker.centers) if ranker.relative else store
        return Example(store=seen, index=index, scaler=ranker.scaler)

    def batches(self, plan: BatchPlan, seed: int) -> Iterator[LabelledBatch]:
        """Yield normalised batches, epoch after epoch without end."""
        # A generator of its own: the global stream would depend on all other code that draws.
        generator = torch.Generator().manual_seed(seed)
        task = self.store.task[self.index]
        while True:
            for positions in plan.epoch(task, generator):
                batch = self.store.batch(self.index[positions])
                yield replace(batch, programs=self.scaler(batch.programs))


def adam() -> MakeOptimizer:
    """Adam as in the official code: rate 7e-4, decay 1e-6."""
    return partial(torch.optim.Adam, lr=7e-4, weight_decay=1e-6)


class OnlineFit:
    """Fit `epochs` passes over the programs, at most `max_steps` batches.

    The cap keeps a round's cost from growing: 40 batches of 512 programs are two seconds on one
    core. Gradients are clipped to norm `clip` (None: not at all).
    """

    def __init__(
        self,
        *,
        epochs: int = 20,
        max_steps: int | None = 40,
        batches: BatchPlan | None = None,
        loss: RankingLoss | None = None,
        optimizer: MakeOptimizer | None = None,
        clip: float | None = 0.5,
    ) -> None:
        if epochs < 1 or (max_steps is not None and max_steps < 1):
            raise ValueError(f"fit: got epochs={epochs}, max_steps={max_steps}; need at least 1")
        self.epochs = epochs
        self.max_steps = max_steps
        self.batches = batches or TaskBatches(tasks=8, programs=64)
        self.loss = loss or LambdaRank()
        self.optimizer = optimizer or adam()
        self.clip = clip

    @staticmethod
    def learnable(store: ProgramTable) -> Int[Tensor, " program"]:
        """Programs of tasks with at least two labels."""
        index = torch.isfinite(store.label).nonzero().squeeze(1)
        count = torch.bincount(store.task[index], minlength=len(store.keys))
        # A ranking loss compares programs of a task: a single one has no gradient.
        return index[count[store.task[index]] > 1]

    def __call__(
        self,
        network: nn.Module,
        example: Example,
        *,
        seed: int,
        penalty: Penalty | None = None,
        also_trained: Sequence[Tensor] = (),
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Train the network (and `also_trained`, which only `penalty` uses) in place."""
        trained = [*(p for p in network.parameters() if p.requires_grad), *also_trained]
        # A new optimiser: moments of the last round belong to other data.
        optimizer = self.optimizer(trained)
        network.train()
        for batch in islice(example.batches(self.batches, seed), self.num_steps(example)):
            score = network(batch.programs)
            loss: Tensor = self.loss(score, batch.label, batch.task)
            if penalty is not None:
                loss = loss + penalty(batch, score)
            optimizer.zero_grad()
            loss.backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(trained, self.clip)
            optimizer.step()
            if after_step is not None:
                after_step()
        network.eval()

    def losses(self, network: nn.Module, example: Example, seed: int) -> Iterator[Tensor]:
        """Yield the loss of every batch of one epoch."""
        num = self.batches.num_batches(example.store.task[example.index])
        for batch in islice(example.batches(self.batches, seed), num):
            yield self.loss(network(batch.programs), batch.label, batch.task)

    def num_steps(self, example: Example) -> int:
        """Batches of one fit."""
        steps = self.epochs * self.batches.num_batches(example.store.task[example.index])
        return steps if self.max_steps is None else min(steps, self.max_steps)


def gentle_fit(*, epochs: int = 20, max_steps: int | None = 40) -> OnlineFit:
    """Our fit for trained weights: Adam at 2e-4 without decay.

    Adam normalises its decay, too: where inputs do not occur among the few target programs, even
    1e-6 moves a weight by nearly the full rate a step, and what the source learned there is gone.
    """
    return OnlineFit(
        epochs=epochs, max_steps=max_steps, optimizer=partial(torch.optim.Adam, lr=2e-4)
    )


def official_fit(*, epochs: int = 50, max_steps: int | None = None) -> OnlineFit:
    """The fit of the release: Adam 7e-4, batches of 512 programs of all tasks."""
    return OnlineFit(
        epochs=epochs,
        max_steps=max_steps,
        batches=MixedBatches(programs=512),
        loss=LambdaRank(lists="batch"),
    )


def released_fine_tuning(*, epochs: int = 50, max_steps: int | None = None) -> OnlineFit:
    """``pruner_fine_tune_model.py``: plain SGD 7e-4, no momentum, no decay, no clipping."""
    fit = official_fit(epochs=epochs, max_steps=max_steps)
    fit.optimizer, fit.clip = partial(torch.optim.SGD, lr=7e-4), None
    return fit
