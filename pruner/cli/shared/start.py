"""``checkpoint=``: continue from a trained model, with its options."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.options import own_models, plain
from pruner.cli.shared.output import say
from pruner.errors import PrunerError
from pruner.models.ranker import NeuralRanker
from pruner.models.training.fit import ranker_of, start_of
from pruner.models.training.recipe import Scaling, Start
from pruner.models.training.training import GIVEN
from pruner.study.training_run import Fold


def start_from(config: DictConfig) -> Start | None:
    """Load the model to continue; set its model, inputs, features in `config`.

    Raises `PrunerError` for trees and contradicting options, `DataError` without the checkpoint.
    """
    if config.checkpoint is None:
        if config.scaler is not None:
            raise PrunerError(
                f"scaler={config.scaler} needs a model to continue from; add checkpoint=RUN"
            )
        return None
    scaling: Scaling = "keep" if config.scaler is None else config.scaler
    start = start_of(Path(config.checkpoint), own_models(config.models.own), scaling)
    values = _decided(start, plain(config)["features"])
    _refuse_contradicted(config, values)
    for name, value in values.items():
        OmegaConf.update(config, name, value, merge=False, force_add=True)
    return start


def check_contradicted(config: DictConfig, own: Sequence[type[Any]]) -> None:
    """Refuse a model on the command line that contradicts the checkpoint."""
    ranker, info = ranker_of(Path(config.checkpoint), own)
    if isinstance(ranker, NeuralRanker):
        _refuse_contradicted(config, _decided(Start(ranker=ranker, info=info), {}))


def _decided(start: Start, features: Mapping[str, Any]) -> dict[str, Any]:
    model = type(start.ranker.network)
    return {
        "model": {
            "_target_": f"{model.__module__}.{model.__qualname__}",
            **_written_out(model),
            **start.info.model.arguments,
        },
        "inputs": {"relative": start.ranker.relative, "scale": start.scale},
        "features": {**features, "dataflow": start.info.dataflow},
    }


def _written_out(model: type[Any]) -> dict[str, Any]:
    """Return defaults of a network's arguments, as files of ``conf/model``."""
    found = {name: one.default for name, one in signature(model).parameters.items()}
    plainly = (bool, int, float, str, tuple, NoneType)  # Parameter.empty is none of these
    return {
        name: [*value] if isinstance(value, tuple) else value
        for name, value in found.items()
        if isinstance(value, plainly)
    }


def _refuse_contradicted(config: DictConfig, values: Mapping[str, Any]) -> None:
    """Refuse words of the command line that contradict `values`; presets may."""
    if not HydraConfig.initialized():
        return
    decided, refused = OmegaConf.create(dict(values)), []
    for override in HydraConfig.get().overrides.task:
        name = override.lstrip("+~").split("=")[0]
        if name.split(".")[0] in values:
            before = plain(OmegaConf.select(config, name))
            if before != plain(OmegaConf.select(decided, name)):
                refused.append(override)
    if refused:
        raise PrunerError(
            f"checkpoint={config.checkpoint} keeps the model, inputs and features that its weights "
            f"learned with; leave out {' '.join(refused)}"
        )


def log_start(start: Start, folds: Sequence[Fold]) -> None:
    """Report the records that the continued model has seen."""
    info = start.info
    seen = ", ".join(f"{len(tasks)} of {name}" for name, tasks in info.seen_tasks.items())
    say(
        f"going on from a {info.model.name} that has seen "
        + (f"tasks: {seen}" if info.says_seen else f"more than it says ({seen or 'nothing'})")
    )
    for fold in folds:
        left_out = len(fold.split.test) - len(start.unseen(fold.split).test)
        if left_out:
            say(f"{fold.name or 'test'}: {left_out} tasks do not judge, it has seen their work")


def log_blind(start: Start, results: Sequence[dict[str, Any] | None]) -> None:
    """Report columns where the kept normalisation does not fit new records."""
    blind = max((result["num_blind_columns"] for result in results if result), default=0)
    if blind and start.scaling == "keep":
        say(
            f"{blind} columns vary in these records and were constant in the model's records: its "
            "weights for them are random and their scale is wrong; scaler=renew uses the "
            "statistics of these records"
        )


def log_unchanged(results: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Report fits that never improved on their start."""
    for name, result in results.items():
        if result is not None and result.get("best_epoch") == GIVEN:
            say(
                f"{f'{name}: ' if name else ''}the training improved nothing: no epoch is better "
                "on the validation tasks than the model it went on from, so best.safetensors "
                f"holds that model unchanged (best_epoch {GIVEN})"
            )
