"""Choose the learned model of a run, and check it beforehand."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.features.dataflow import NUM_ROWS, kind_of
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.model import Model
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import Trainable
from pruner.models.training.fit import ranker_of, start_of
from pruner.models.training.recipe import Start
from pruner.models.training.training import build_network
from pruner.progress import Log
from pruner.tune.run.learning import AdaptedModel, OnlineModel, TreeModel

MakeAdaptation = Callable[..., Adaptation]  # takes ``setting=``


def verifier(
    make_model: Callable[[], Any],
    make_adaptation: MakeAdaptation,
    *,
    checkpoint: Path | None,
    platform: str,
    seed: int,
    log: Log,
    relative: bool = True,
    standard: bool = True,
    own: Sequence[type[Trainable]] = (),
) -> Callable[[], OnlineModel]:
    """Choose the learned model of a run, and return its constructor.

    `make_model` makes the model that learns without a checkpoint, from features `relative` to the
    task, as `standard` scores or else divided by the column maxima. `own` are classes of the user.
    Raises `PrunerError` for a model that cannot read live spaces, and for a checkpoint without
    effect.
    """
    # made once to find out its class, and to refuse bad arguments before the run
    model: Any = build_network(make_model, seed=0)
    if not model.is_network:
        if not model.grows_online:
            raise PrunerError(f"{type(model).__name__}: tune.py takes a network or model=xgboost")
        if checkpoint is not None:
            raise PrunerError(f"checkpoint={checkpoint}: model=xgboost cannot continue it")
        return lambda: TreeModel(seed=seed)
    if checkpoint is None:
        _check_network(model, "model")
        setting = partial(
            Setting,
            make_network=make_model,
            relative=relative,
            standard=standard,
            seed=seed,
        )
        if not make_adaptation(setting=setting()).learns:  # its constructor refuses bad settings
            raise PrunerError("adaptation=none scores with a trained model: give checkpoint=RUN")
        return lambda: AdaptedModel(make_adaptation(setting=setting()))
    ranker, info = ranker_of(checkpoint, own)
    if info.seen_tasks and platform not in info.seen_tasks:
        known = ", ".join(sorted(info.seen_tasks))
        log(f"checkpoint={checkpoint}: trained on {known}, never on {platform}, which is tuned now")
    if not isinstance(ranker, NeuralRanker):
        _check_frozen(checkpoint, info, make_adaptation, Setting(make_network=make_model))
        return lambda: OnlineModel(ranker, info.dataflow)  # type: ignore[arg-type]
    _check_network(ranker.network, f"checkpoint={checkpoint}")
    return _adapted(checkpoint, start_of(checkpoint, own), make_adaptation, seed)


def _adapted(
    path: Path, start: Start, make_adaptation: MakeAdaptation, seed: int
) -> Callable[[], OnlineModel]:
    """Adapt a source model; a new network is of its class, too."""
    make_network = partial(type(start.ranker.network), **start.info.model.arguments)

    def adaptation() -> Adaptation:
        setting = Setting(make_network=make_network, source=start.ranker, seed=seed)
        return make_adaptation(setting=setting)

    # made once now: errors appear before the run, not at its first fit
    if not adaptation().keeps_source:
        raise PrunerError(
            f"checkpoint={path}: adaptation=scratch throws its weights away; "
            "choose for example adaptation=finetune"
        )
    return lambda: AdaptedModel(adaptation(), start)


def _check_frozen(
    path: Path, info: CheckpointInfo, make_adaptation: MakeAdaptation, setting: Setting
) -> None:
    """Refuse to adapt trees: they stay unchanged or are grown anew."""
    try:
        learns = make_adaptation(setting=setting).learns
    except PrunerError:  # it needs the weights of a source, so it would learn
        learns = True
    if learns:
        raise PrunerError(
            f"checkpoint={path}: {info.model.name} cannot be adapted; adaptation=none uses it "
            "unchanged, model=xgboost without checkpoint= grows trees while tuning"
        )


def _check_network(network: Model, name: str) -> None:
    if network.reads_primitives:
        raise PrunerError(
            f"{name}: {type(network).__name__} reads primitives of Ansor's records, which live "
            "spaces do not have; choose model=pacm"
        )
    try:
        kind_of(network.num_dataflow_rows)
    except ValueError:
        raise PrunerError(
            f"{name}: made for {network.num_dataflow_rows} dataflow rows, live spaces compute "
            f"{' or '.join(map(str, sorted(NUM_ROWS.values())))}; choose model=pacm"
        ) from None
