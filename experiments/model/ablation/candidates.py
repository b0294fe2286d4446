"""Candidate changes of PaCM, each with its question, and baselines."""

from functools import partial

import torch

from experiments.model.ablation.variants import Change
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.training.losses import LambdaRank, RankNet, TopShare
from pruner.models.trees.lightgbm import LightGBMRanker
from pruner.models.trees.xgboost import XGBoostRanker

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
