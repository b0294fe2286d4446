"""Trained rankers: programs in, scores out."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pruner.arrays import Scores
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.models.judging.metrics import ScoredTask
from pruner.models.model import Model, RankingNetwork
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import Center, ColumnScaler

SCORING_BATCH = 4096  # programs, as in the official code
DIVERGED = "its scores are no numbers; train it with a smaller optimizer.lr"
_NO_TASK = TaskKey(platform="", task="", workload_key="", target="")


class Diverged(PrunerError):
    """The scores of a model are NaN, as after a diverged training."""


class Ranker(Model, ABC):
    """Scores programs; higher is predicted faster, within a task only."""

    @abstractmethod
    def score_batch(self, batch: ProgramBatch, key: TaskKey = _NO_TASK) -> Scores:
        """Scores [program] of programs of one task."""

    def score_store(self, store: ProgramTable, index: Int[Tensor, " program"]) -> Scores:
        """Scores [program] of the programs `index` of a single task."""
        return self.score_batch(
            store.programs(index), store.key_of(index) if len(index) else _NO_TASK
        )

    def score(self, features: ProgramFeatures, key: TaskKey = _NO_TASK) -> Scores:
        """Scores [N] of one task's programs; minus infinity for invalid features."""
        valid = features.valid
        score = np.full(len(valid), -np.inf, dtype=np.float32)
        if valid.any():
            score[valid] = self.score_batch(
                ProgramBatch.of(features.take(valid), key.platform), key
            )
        return score

    def score_tasks(self, table: ProgramTable, index: Int[Tensor, " program"]) -> list[ScoredTask]:
        """Score the programs `index` task by task; raises Diverged where a score is NaN."""
        found = []
        for programs, store, own in table.each_task(index):
            key, score = table.key_of(programs), self.score_store(store, own)
            if np.isnan(score).any():
                raise Diverged(f"the model has diverged: {DIVERGED}")
            found.append(
                ScoredTask(
                    name=f"{key.platform}/{key.task}",
                    latency_s=table.latency_s[programs].numpy(),
                    score=score,
                    timed_s=table.timed_s[programs.numpy()],
                    key=key,
                )
            )
        return found


class NeuralRanker(nn.Module, Ranker):
    """A network with the normalisation of its training set.

    With `relative`, scoring first subtracts a mean candidate (training subtracts it once for the
    whole store): that of `centers` for a task that has an entry there, else the mean of the
    programs that are scored together.
    """

    is_network = True

    def __init__(
        self, network: RankingNetwork, scaler: ColumnScaler, *, relative: bool = False
    ) -> None:
        super().__init__()
        self.network = network
        self.scaler = scaler
        self.relative = relative
        self.reads_draft = network.reads_draft
        self.centers: dict[TaskKey, Center] = {}

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Scores [program] of unscaled features, in the current mode."""
        return self.network(self.scaler(batch))

    @torch.no_grad()
    def score_batch(self, batch: ProgramBatch, key: TaskKey = _NO_TASK) -> Scores:
        """Score programs of one task in evaluation mode, at most 4096 at a time."""
        was_training = self.training
        self.eval()
        if self.relative and batch.num_programs:
            center, known = Center.of(batch), self.centers.get(key)
            # A fixed centre keeps the scores of a task comparable from call to call; `over` takes
            # places that no program of it had from this batch.
            batch = (center if known is None else known.over(center)).relative(batch)
        device = self.scaler.statement_scale.device
        parts = [self(part.to(device)) for part in batch.split(SCORING_BATCH)]
        # A fit asks for validation scores between its epochs: its mode must survive.
        self.train(was_training)
        return torch.cat(parts).float().cpu().numpy() if parts else np.zeros(0, np.float32)


class RandomRanker(Ranker):
    """Uniformly random scores, the reference of every table."""

    needs_fit = False

    def __init__(self, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def score_batch(self, batch: ProgramBatch, key: TaskKey = _NO_TASK) -> Scores:
        """Draw uniform scores."""
        return self._rng.random(batch.num_programs)
