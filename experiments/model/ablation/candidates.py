"""Candidate changes of PaCM, each with its question, joined changes, and baselines."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pruner.errors import PrunerError
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.registry import ModelFactory
from pruner.models.training.losses import LambdaRank, RankNet, TopShare
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import build_network
from pruner.models.trees.lightgbm import LightGBMRanker
from pruner.models.trees.xgboost import XGBoostRanker


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference from PaCM with the recipe of ``train.py``.

    `arguments` of the model, `fields` of the recipe; `model` is another class than PaCM for a
    baseline; `failures`: it learns from programs that failed, too. `why`: the question that it
    answers. `of`: the names of changes that it joins.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    model: ModelFactory = PaCM
    failures: bool = False
    why: str = ""
    of: tuple[str, ...] = ()

    def recipe(self, basis: Recipe) -> Recipe:
        """The recipe with the change."""
        return replace(basis, model=partial(self.model, **self.arguments), **self.fields)

    def same_as(self, other: "Change") -> bool:
        """Whether both make the same model by the same recipe, under any name."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("arguments", "fields", "model", "failures")
        )

    def reads_draft(self) -> bool:
        """Whether its model reads the analyzer's columns."""
        return build_network(partial(self.model, **self.arguments), seed=0).reads_draft


def together(changes: Mapping[str, Change]) -> Change:
    """Join changes by name; raises PrunerError where they contradict each other."""
    arguments: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for change in changes.values():
        if change.model is not PaCM:
            raise PrunerError("changes of PaCM go together, other models do not")
        for joined, own in ((arguments, change.arguments), (fields, change.fields)):
            for name, value in own.items():
                if joined.setdefault(name, value) is not value and joined[name] != value:
                    raise PrunerError(f"{name}: {joined[name]} in one change, {value} in another")
    return Change(
        arguments=arguments,
        fields=fields,
        failures=any(change.failures for change in changes.values()),
        why="what helped by itself, together",
        of=tuple(sorted(changes)),
    )


BASIS = "pacm"
BASELINES: dict[str, Change] = {
    "tensetmlp": Change(model=TenSetMLP, why="the statements alone"),
    "attention": Change(model=HardwareAttention, why="statements and the device"),
    "xgboost": Change(model=XGBoostRanker, why="trees on pooled statements"),
    "lightgbm": Change(model=LightGBMRanker, why="the same of another library"),
}
# Why the dataflow rows do not help: no candidates, but what tells.
QUESTIONS: dict[str, Change] = {
    "no_dataflow": Change(
        arguments={"use_dataflow": False}, why="what the rows add when inputs are relative"
    ),
    "absolute": Change(fields={"relative": False}, why="the rows beside absolute statements"),
    "absolute_no_dataflow": Change(
        arguments={"use_dataflow": False},
        fields={"relative": False},
        why="what the rows add when inputs are absolute: relative inputs already order programs?",
    ),
}
CANDIDATES: dict[str, Change] = {
    "draft": Change(
        arguments={"use_draft": True}, why="symbols and terms of the analyzer as inputs"
    ),
    "residual": Change(
        arguments={"residual": True}, why="the score begins as the analyzer's, the rest is learned"
    ),
    "draft_residual": Change(
        arguments={"use_draft": True, "residual": True}, why="both: it sees what it corrects"
    ),
    "draft_residual_absolute": Change(
        arguments={"use_draft": True, "residual": True},
        fields={"relative": False},
        why="both, and the programs as they are: few tasks, and none like it, to be relative to",
    ),
    "dropout_10": Change(arguments={"branch_dropout": 0.1}, why="over-fitting of joint branches"),
    "dropout_30": Change(arguments={"branch_dropout": 0.3}, why="the same, more"),
    "narrow": Change(
        arguments={"width": 64, "dataflow_hidden": 32, "dataflow_width": 64},
        why="over-fitting: a fifteenth of the weights",
    ),
    "decay": Change(
        fields={"optimizer": partial(torch.optim.AdamW, lr=7e-4, weight_decay=1.0)},
        why="over-fitting: ten times the weight decay",
    ),
    "top_tenth": Change(
        fields={"loss": TopShare(beside=LambdaRank())}, why="which programs are in the best tenth"
    ),
    "failures": Change(failures=True, why="programs that failed as the worst of their task"),
    "top_tenth_failures": Change(
        fields={"loss": TopShare(beside=LambdaRank())},
        failures=True,
        why="the classification with failures as negatives",
    ),
    "ranknet": Change(fields={"loss": RankNet()}, why="all pairs alike, not the top first"),
    "averaged": Change(
        fields={"schedule": None, "average_epochs": 4}, why="the mean of the last four epochs"
    ),
    "soup": Change(fields={"soup": 3}, why="fits with other batches averaged in weights"),
    "device": Change(
        arguments={"use_device": True}, why="constants of the device, for many at once"
    ),
}
EVERY = {BASIS: Change(), **BASELINES, **QUESTIONS, **CANDIDATES}
# Seconds of a fit of PaCM on one thread (results of table_topk), and of others beside it.
PLATFORM_S = {"k80": 27.0, "v100": 46.0, "mi50": 26.0, "a100": 5.0}
MODEL_S = {
    "tensetmlp": 0.42, "attention": 0.57, "xgboost": 0.46, "lightgbm": 0.56, "no_dataflow": 0.41,
    "absolute_no_dataflow": 0.41, "narrow": 0.3, "draft": 1.1, "draft_residual": 1.1,
    "draft_residual_absolute": 1.1, "soup": 2.1, "together": 2.3,
}  # fmt: skip
