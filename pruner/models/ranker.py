"""A trained ranker as the rest of the project sees it: programs in, scores out."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.models.judging.metrics import ScoredTask
from pruner.models.model import Model, Network
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.relative import Center
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.models.programs.table import ProgramTable

SCORING_BATCH = 4096  # programs, as in the official code
DIVERGED = "its scores are no numbers; train it with a smaller optimizer.lr"
_NO_TASK = TaskKey(platform="", task="", workload_key="", target="")


class Diverged(PrunerError):
    """The scores of a model are no numbers, as those of one whose training has diverged."""


class Ranker(Model, ABC):
    """Scores programs; higher is predicted faster. Scores of different tasks do not compare."""

    @abstractmethod
    def score_store(
        self, store: ProgramStore, index: Int[Tensor, " program"]
    ) -> Float[np.ndarray, " program"]:
        """Score programs of one task of a store."""

    def score(
        self, features: ProgramFeatures, key: TaskKey = _NO_TASK
    ) -> Float[np.ndarray, " program"]:
        """Score the N programs of one task; minus infinity where features are not valid."""
        valid = features.valid
        score = np.full(len(valid), -np.inf, dtype=np.float32)
        if valid.any():
            unmeasured, line = np.ones(len(valid)), np.arange(len(valid))
            part = TaskPrograms.of(key, features, unmeasured, line)
            store = ProgramStore.build([part])
            score[valid] = self.score_store(store, torch.arange(store.num_programs))
        return score

    def score_tasks(self, table: ProgramTable, index: Int[Tensor, " program"]) -> list[ScoredTask]:
        """Score the given programs task by task, with their measured latencies beside.

        Raises Diverged where a score is no number.
        """
        return [
            ScoredTask(
                name=f"{table.key_of(view.programs).platform}/{table.key_of(view.programs).task}",
                latency_s=table.latency_s[view.programs].numpy(),
                score=_numbers(self.score_store(view.store, view.own)),
                timed_s=table.timed_s[view.programs.numpy()],
                key=table.key_of(view.programs),
            )
            for view in table.each_task(index)
        ]


def _numbers(score: Float[np.ndarray, " program"]) -> Float[np.ndarray, " program"]:
    if np.isnan(score).any():
        raise Diverged(f"the model has diverged: {DIVERGED}")
    return score


class NeuralRanker(nn.Module, Ranker):
    """A network with the normalisation of its training set.

    With `relative`, scoring takes a mean candidate away from all of them first (training does so
    once for the whole store): that of `centers` for a task that has one there, else the mean of the
    programs that are scored together.
    """

    is_network = True

    def __init__(self, network: Network, scaler: ColumnScaler, *, relative: bool = False) -> None:
        super().__init__()
        self.network = network
        self.scaler = scaler
        self.relative = relative
        self.reads_draft = network.reads_draft
        self.centers: dict[TaskKey, Center] = {}

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Score features that are not scaled yet, in training or evaluation mode as set."""
        scores: Tensor = self.network(self.scaler(batch))
        return scores

    @torch.no_grad()
    def score_store(
        self, store: ProgramStore, index: Int[Tensor, " program"]
    ) -> Float[np.ndarray, " program"]:
        """Score programs of one task in evaluation mode, at most 4096 at a time."""
        was_training = self.training
        self.eval()
        device = self.scaler.statement_scale.device
        center = self._center(store, index) if self.relative and len(index) else None
        parts = []
        for part in index.split(SCORING_BATCH):
            batch = store.programs(part)
            parts.append(self((center.relative(batch) if center else batch).to(device)))
        self.train(was_training)
        return torch.cat(parts).float().cpu().numpy()

    def _center(self, store: ProgramStore, index: Int[Tensor, " program"]) -> Center:
        of_candidates = Center.of(store.programs(index))
        known = self.centers.get(store.key_of(index))
        return of_candidates if known is None else known.over(of_candidates)


class RandomRanker(Ranker):
    """Scores that know nothing: the row every table prints beside the others."""

    needs_fit = False

    def __init__(self, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def score_store(
        self, store: ProgramStore, index: Int[Tensor, " program"]
    ) -> Float[np.ndarray, " program"]:
        """Draw uniform scores."""
        return self._rng.random(len(index))
