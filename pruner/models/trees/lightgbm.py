"""LightGBM on pooled statements, the second tree baseline of TenSet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pruner.lazy import optional
from pruner.models.programs.program_table import ProgramTable
from pruner.models.trees.validation import checked_lightgbm
from pruner.models.trees.xgboost import Grown, Pooling, TreeRanker

_LEVELS = 31  # its ranking needs whole labels; the gain of level l is l, not 2 ** l
_MOST_ROWS = 10_000  # of a query, a limit of LightGBM


class LightGBMRanker(TreeRanker):
    """LightGBM, ranking inside tasks or regressing best/latency.

    `objective` is LightGBM's own name: "lambdarank" compares programs of one task only, by labels
    rounded to 32 levels; "regression" fits the label. Training stops after `patience` rounds
    without a better validation metric. Raises MissingExtra when lightgbm is not installed.
    """

    def __init__(
        self,
        *,
        pooling: Sequence[Pooling] = ("sum", "max"),
        objective: str = "lambdarank",
        num_rounds: int = 300,
        patience: int = 50,
        num_leaves: int = 127,
        learning_rate: float = 0.1,
        min_data_in_leaf: int = 20,
        subsample: float = 0.8,
        colsample_bytree: float = 0.5,
        truncation: int = 256,
        relative: bool = True,
    ) -> None:
        super().__init__(pooling=pooling, relative=relative)
        self.num_rounds, self.patience = num_rounds, patience
        self.ranks = objective in ("lambdarank", "rank_xendcg")
        self.parameters: dict[str, Any] = {
            "objective": objective,
            "num_leaves": num_leaves,
            "learning_rate": learning_rate,
            "min_data_in_leaf": min_data_in_leaf,
            "bagging_fraction": subsample,
            "bagging_freq": 1,
            "feature_fraction": colsample_bytree,
            "verbosity": -1,
            "deterministic": True,
            "force_row_wise": True,
        }
        if self.ranks:
            self.parameters |= {
                "label_gain": list(range(_LEVELS + 1)),
                "lambdarank_truncation_level": truncation,
                "eval_at": [5],
            }

    def _grow(
        self, data: Any, watch: list[Any], seed: int, num_threads: int, grown: Grown | None
    ) -> int:
        lightgbm = import_lightgbm()
        parameters = {**self.parameters, "seed": seed, "num_threads": num_threads}
        callbacks = [lightgbm.early_stopping(self.patience, verbose=False)] if watch else []
        if grown is not None:
            callbacks.append(lambda found: grown(found.iteration + 1, self.num_rounds))
        booster = lightgbm.train(
            parameters, data, self.num_rounds, valid_sets=watch, callbacks=callbacks
        )
        # model_to_string writes only the rounds up to the best one.
        self._booster = lightgbm.Booster(model_str=booster.model_to_string())
        return int(self._booster.num_trees())

    def predict(self, columns: Float[np.ndarray, "program column"]) -> np.ndarray:
        """Raw margins [program] of pooled columns."""
        return np.asarray(self.booster.predict(columns, raw_score=True))

    def state(self) -> Tensor:
        """The booster in LightGBM's own text form, as a uint8 tensor."""
        text = self.booster.model_to_string().encode()
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def load_state(self, state: Tensor) -> None:
        """Restore `state`; ValueError for any other content."""
        text = checked_lightgbm(state.numpy().tobytes().decode())
        self._booster = import_lightgbm().Booster(model_str=text)

    def _labelled(self, store: ProgramTable, index: Tensor, like: Any) -> Any:
        sizes = None
        if self.ranks:
            order, sizes = queries(store.task[index])
            index = index[order]
        label = store.label[index].numpy()
        return import_lightgbm().Dataset(
            self.columns(store, index),
            label=np.rint(label * _LEVELS) if self.ranks else label,
            group=None if sizes is None else sizes.numpy(),
            reference=like,
        )


def queries(
    task: Int[Tensor, " program"], most: int = _MOST_ROWS
) -> tuple[Int[Tensor, " program"], Int[Tensor, " query"]]:
    """Order the programs by query, and give the size of each; tasks are consecutive.

    A task is a query, or several of equal size (give or take one) above `most` programs.

    >>> queries(torch.tensor([5, 7, 7, 7]), most=2)
    (tensor([0, 1, 3, 2]), tensor([1, 2, 1]))
    """
    _, group, sizes = torch.unique_consecutive(task, return_inverse=True, return_counts=True)
    place = torch.arange(len(task)) - (sizes.cumsum(0) - sizes)[group]
    parts = -(-sizes // most)
    # By stride: neighbours in a log, which are alike, are in different queries.
    query = (parts.cumsum(0) - parts)[group] + place % parts[group]
    return query.argsort(stable=True), torch.bincount(query)


def import_lightgbm() -> Any:
    """The library; raises MissingExtra when it is not installed."""
    return optional("lightgbm", "gbdt")
