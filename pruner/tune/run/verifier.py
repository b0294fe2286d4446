"""The learned model of a run: trees grown anew, or a network with a way to adapt it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pruner import features
from pruner.errors import PrunerError
from pruner.features.dataflow import NUM_ROWS
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.model import Model
from pruner.models.ranker import NeuralRanker
from pruner.models.training.training import build_network
from pruner.progress import Tell
from pruner.tune.run.learning import AdaptedModel, OnlineModel, TreeModel

_DATAFLOW = "paper"  # what live spaces compute


def verifier(
    make_model: Callable[[], Any],
    make_adaptation: Callable[..., Adaptation],
    *,
    checkpoint: Path | None,
    platform: str,
    seed: int,
    tell: Tell,
) -> Callable[[], OnlineModel]:
    """What makes the learned model of a run; everything that can be wrong with it is told now.

    `make_adaptation` takes ``setting=``, a :class:`~pruner.models.adaptation.base.Setting`.

    Raises:
        PrunerError: a model that cannot read the features of live spaces, or a checkpoint that
            would not count.
    """
    model: Any = build_network(make_model, seed=0)
    if not model.is_network:
        if not model.grows_online:
            raise PrunerError(f"{type(model).__name__}: tune.py takes a network or model=xgboost")
        if checkpoint is not None:
            raise PrunerError(f"checkpoint={checkpoint}: model=xgboost is grown anew; leave it")
        return lambda: TreeModel(seed=seed)
    _check_network(model, "model")
    source = None if checkpoint is None else _source(checkpoint, platform, tell)

    def adaptation() -> Adaptation:
        setting = Setting(make_network=make_model, source=source, seed=seed)
        return make_adaptation(setting=setting)

    if source is not None and isinstance(adaptation(), Scratch):
        raise PrunerError(
            f"checkpoint={checkpoint}: adaptation=scratch throws its weights away; "
            "choose for example adaptation=finetune"
        )
    adaptation()  # refuses what it cannot work with
    return lambda: AdaptedModel(adaptation())


def _source(path: Path, platform: str, tell: Tell) -> NeuralRanker:
    ranker, info = load_checkpoint(path, feature_version=features.FEATURE_SET_VERSION)
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError(f"checkpoint={path}: trees cannot be adapted online")
    if info.dataflow != _DATAFLOW:
        raise PrunerError(
            f"checkpoint={path}: trained with features.dataflow={info.dataflow}; tune.py takes "
            f"models trained with features.dataflow={_DATAFLOW}"
        )
    _check_network(ranker.network, f"checkpoint={path}")
    if info.seen_tasks and platform not in info.seen_tasks:
        known = ", ".join(sorted(info.seen_tasks))
        tell(f"checkpoint={path}: trained on {known}, never on {platform}, which is tuned now")
    return ranker


def _check_network(network: Model, name: str) -> None:
    """Refuse what cannot read the features of live spaces."""
    if network.reads_primitives:
        raise PrunerError(
            f"{name}: {type(network).__name__} reads primitives of Ansor's records; "
            "choose model=pacm"
        )
    rows = NUM_ROWS[_DATAFLOW]
    if network.num_dataflow_rows not in (None, rows):
        raise PrunerError(f"{name}: made for other dataflow rows than {rows}; choose model=pacm")
