"""Gradient-boosted trees on pooled statement features, the classic Ansor baseline."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pruner.arrays import Scores
from pruner.data.tasks import TaskKey
from pruner.lazy import optional
from pruner.models.programs.batch import NUM_STATEMENT_FEATURES, NUM_WORKLOAD_FLAGS, ProgramBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import group_means
from pruner.models.ranker import Ranker
from pruner.models.trees.validation import check_xgboost

Pooling = Literal["sum", "mean", "max"]


def pooled(batch: ProgramBatch, pooling: Sequence[Pooling]) -> Float[np.ndarray, "program column"]:
    """Pool the statement columns of each program; append flags and statement count.

    Columns: a block of statement columns for each pooling in the given order, workload flags, the
    number of statements. A program without statements has zeros.
    """
    statement = batch.statement.numpy()
    values = np.ascontiguousarray(statement[:, :NUM_STATEMENT_FEATURES])
    counts = torch.bincount(batch.program, minlength=batch.num_programs).numpy()
    filled = counts > 0
    # reduceat returns a foreign row for an empty segment, so empty programs are left out.
    starts = (np.cumsum(counts) - counts)[filled]
    total = np.zeros((len(counts), values.shape[1]), dtype=np.float32)
    peak = np.zeros_like(total)
    if filled.any():
        total[filled] = np.add.reduceat(values, starts)
        peak[filled] = np.maximum.reduceat(values, starts)
    blocks = {
        "sum": total,
        "mean": total / np.maximum(counts, 1)[:, None].astype(np.float32),
        "max": peak,
    }
    flags = np.zeros((len(counts), NUM_WORKLOAD_FLAGS), np.float32)
    # Equal in all rows of a program.
    flags[filled] = statement[starts, NUM_STATEMENT_FEATURES:]
    size = counts[:, None].astype(np.float32)
    return np.concatenate([*(blocks[kind] for kind in pooling), flags, size], axis=1)


Grown = Callable[[int, int], None]  # called with the rounds done and the most rounds


class TreeRanker(Ranker):
    """Boosted trees on pooled statements, the base of both libraries.

    With `relative` the pooled columns are relative to the mean of the task's programs that are
    given together (:mod:`pruner.models.programs.scaler`).
    """

    def __init__(self, *, pooling: Sequence[Pooling], relative: bool) -> None:
        unknown = set(pooling) - {"sum", "mean", "max"}
        if unknown or not pooling:
            raise ValueError(f"model.pooling: got {list(pooling)}; known: sum, mean, max")
        self.pooling: tuple[Pooling, ...] = tuple(pooling)
        self.relative = relative
        self._booster: Any = None

    def fit(
        self,
        store: ProgramTable,
        train: Int[Tensor, " program"],
        valid: Int[Tensor, " held"],
        *,
        seed: int,
        num_threads: int = 0,
        grown: Grown | None = None,
    ) -> int:
        """Grow trees on `train`, stop on `valid`; returns the rounds kept.

        With an empty `valid` no round is dropped. `grown` is called after every round.
        """
        # Both libraries need the rows of a task next to each other.
        data = self._labelled(store, train.sort().values, None)
        watch = [self._labelled(store, valid.sort().values, data)] if len(valid) else []
        return self._grow(data, watch, seed, num_threads, grown)

    @abstractmethod
    def _labelled(self, store: ProgramTable, index: Tensor, like: Any) -> Any:
        """The library's own table of programs; ``like``: the training table."""

    @abstractmethod
    def _grow(
        self, data: Any, watch: list[Any], seed: int, num_threads: int, grown: Grown | None
    ) -> int:
        """Grow the booster; returns its rounds."""

    @abstractmethod
    def state(self) -> Tensor:
        """The booster in its library's own form, as a uint8 tensor."""

    @abstractmethod
    def load_state(self, state: Tensor) -> None:
        """Restore `state`."""

    @abstractmethod
    def predict(self, columns: Float[np.ndarray, "program column"]) -> np.ndarray:
        """Scores [program] of pooled columns."""

    @property
    def booster(self) -> Any:
        """The fitted booster; RuntimeError before fit or load."""
        if self._booster is None:
            raise RuntimeError(f"{type(self).__name__}: score before fit or load")
        return self._booster

    def columns(
        self, store: ProgramTable, index: Int[Tensor, " program"]
    ) -> Float[np.ndarray, "program column"]:
        """Pooled columns [program, column], the trees' inputs."""
        return self._columns(store.programs(index), store.task[index])

    def _columns(self, batch: ProgramBatch, task: Int[Tensor, " program"]) -> np.ndarray:
        values = pooled(batch, self.pooling)
        if self.relative:
            # The mean of every task's programs is subtracted in place.
            own = values[:, : len(self.pooling) * NUM_STATEMENT_FEATURES]
            names, group = torch.unique(task, return_inverse=True)
            own -= group_means(torch.from_numpy(own), group, len(names)).numpy()[group.numpy()]
        return values

    def score_batch(self, batch: ProgramBatch, key: TaskKey | None = None) -> Scores:
        """Score programs of one task."""
        one_task = torch.zeros(batch.num_programs, dtype=torch.long)
        return self.predict(self._columns(batch, one_task)).astype(np.float32)


class XGBoostRanker(TreeRanker):
    """XGBoost on pooled statements, ranking inside tasks or regressing best/latency.

    `objective` is XGBoost's own name: "rank:pairwise" compares programs of one task only,
    "reg:squarederror" fits the label. Training stops after `patience` rounds without a better
    validation error. Raises MissingExtra when xgboost is not installed.
    """

    grows_online = True

    def __init__(
        self,
        *,
        pooling: Sequence[Pooling] = ("sum", "max"),
        objective: str = "rank:pairwise",
        num_rounds: int = 300,
        patience: int = 50,
        max_depth: int = 8,
        learning_rate: float = 0.1,
        min_child_weight: float = 1.0,
        subsample: float = 0.8,
        colsample_bytree: float = 0.5,
        pairs_per_program: int = 8,
        relative: bool = True,
    ) -> None:
        super().__init__(pooling=pooling, relative=relative)
        self.num_rounds, self.patience = num_rounds, patience
        self.parameters: dict[str, Any] = {
            "objective": objective,
            "max_depth": max_depth,
            "eta": learning_rate,
            "min_child_weight": min_child_weight,
            "subsample": subsample,
            "colsample_bytree": colsample_bytree,
            "tree_method": "hist",
        }
        if objective.startswith("rank:"):
            # Pairs drawn over the whole list: log order inside a task carries no rank to truncate.
            # The exponential gain of its NDCG takes whole labels only; ours are shares.
            self.parameters["ndcg_exp_gain"] = False
            self.parameters["lambdarank_pair_method"] = "mean"
            self.parameters["lambdarank_num_pair_per_sample"] = pairs_per_program

    def _grow(
        self, data: Any, watch: list[Any], seed: int, num_threads: int, grown: Grown | None
    ) -> int:
        self._booster = _xgboost().train(
            {**self.parameters, "seed": seed, "nthread": num_threads},
            data,
            num_boost_round=self.num_rounds,
            evals=[(one, "valid") for one in watch],
            early_stopping_rounds=self.patience if watch else None,
            verbose_eval=False,
            callbacks=[] if grown is None else [_rounds_told(grown, self.num_rounds)],
        )
        if watch:
            # XGBoost keeps the rounds after the best; a slice has none of them.
            self._booster = self._booster[: self._booster.best_iteration + 1]
        return int(self._booster.num_boosted_rounds())

    def predict(self, columns: Float[np.ndarray, "program column"]) -> np.ndarray:
        """Raw margins [program] of pooled columns."""
        matrix = _xgboost().DMatrix(columns)
        return np.asarray(self.booster.predict(matrix, output_margin=True))

    def state(self) -> Tensor:
        """The booster in XGBoost's JSON, as bytes in a uint8 tensor."""
        raw = self.booster.save_raw(raw_format="json")
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

    def load_state(self, state: Tensor) -> None:
        """Restore `state`, also of an earlier version; ValueError for other content."""
        payload = state.numpy().tobytes()
        check_xgboost(payload)
        booster = _xgboost().Booster()
        booster.load_model(bytearray(payload))
        self._booster = booster

    def _labelled(self, store: ProgramTable, index: Tensor, like: Any) -> Any:
        label, task = store.label[index].numpy(), store.task[index].numpy()
        return _xgboost().DMatrix(self.columns(store, index), label=label, qid=task)


def _rounds_told(grown: Grown, most: int) -> Any:
    class Rounds(_xgboost().callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            grown(epoch + 1, most)
            return False  # do not stop

    return Rounds()


def _xgboost() -> Any:
    return optional("xgboost", "gbdt")
