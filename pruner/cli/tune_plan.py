"""What a tuning run works with, built from its options before its folder and its workers are."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner import features
from pruner.cli.evaluate import checkpoint_file
from pruner.cli.options import build, plain
from pruner.cli.output import say
from pruner.errors import PrunerError
from pruner.features.dataflow import NUM_ROWS
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import Analyzer, CpuAnalyzer, load_analyzer
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.model import Model, Network
from pruner.models.ranker import NeuralRanker
from pruner.models.training.training import build_network
from pruner.places import conf_folder
from pruner.program.device import device_from_mapping
from pruner.search.policy import RoundSettings
from pruner.tune.measure.jobs import RpcAddress, Timing
from pruner.tune.measure.machine import make_platform, missing_device
from pruner.tune.measure.measurer import MeasureSettings, Platform
from pruner.tune.measure.remote import check_health
from pruner.tune.rivals.settings import Ansor
from pruner.tune.run.learning import AdaptedModel, OnlineModel, TreeModel
from pruner.tune.run.loop import TuneBudget

TIMING = ("number", "repeats", "cv_limit", "min_repeat_ms", "flush_cache")
_DATAFLOW = "paper"  # what live spaces compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``model`` None: nothing is learned, or the policy brings its own model."""

    platform: Platform
    policy: Any
    settings: MeasureSettings
    budget: TuneBudget
    model: OnlineModel | None


def make_plan(config: DictConfig) -> Plan:
    """Build what the options name.

    Raises:
        PrunerError: a value that cannot work, or options that contradict each other.
    """
    policy, settings = build(config.policy), _settings(config)
    if isinstance(policy, Ansor):
        _check_ansor(config)
    model = None
    if isinstance(policy, RoundSettings) and config.verify:
        model = _model(config)
    elif config.checkpoint is not None:
        raise PrunerError(
            f"checkpoint={config.checkpoint}: nothing would use it; it needs verify=true and a "
            "policy such as pruner_live"
        )
    return Plan(
        platform=_platform(config),
        policy=policy,
        settings=settings,
        budget=TuneBudget(**plain(config.budget)),
        model=model,
    )


def _check_ansor(config: DictConfig) -> None:
    """Ansor's own process measures, and by its own rule."""
    for option in ("compile_only", "measure.cv_limit"):
        if value := OmegaConf.select(config, option):
            raise PrunerError(f"{option}={value}: policy=ansor_tvm cannot do that; leave it out")


def _settings(config: DictConfig) -> MeasureSettings:
    options = plain(config.measure)
    timing = Timing(**{k: options.pop(k) for k in TIMING})
    return MeasureSettings(timing=timing, **options)


def _platform(config: DictConfig) -> Platform:
    address = None
    if config.runner.kind == "rpc":
        names = ("host", "port", "key", "session_timeout_s")
        address = RpcAddress(**{name: config.runner[name] for name in names})
    device = device_from_mapping(plain(config.platform))
    platform = make_platform(device, target=plain(config.target), address=address)
    if address is not None:
        found = check_health(address, config.runner.health_timeout_s)
        say(f"{found['servers']} device(s) {address.key}, answer in {found['seconds']:.2f} s")
    reason = None if config.compile_only else missing_device(platform)
    if reason is not None:
        raise PrunerError(
            f"platform={config.platform.name}: {reason}; "
            "use runner=rpc, compile_only=true or platform=cpu"
        )
    say(f"target {platform.target_json}")
    return platform


def load_draft(config: DictConfig, platform: Platform) -> Analyzer | None:
    """The platform's analyzer, for as many cores as the target has; None where there is none."""
    try:
        analyzer = load_analyzer(conf_folder(), config.platform.name)
    except PrunerError as error:
        say(f"no draft: {error}")
        return None
    if isinstance(analyzer, CpuAnalyzer):
        return replace(analyzer, device=replace(analyzer.device, num_cores=platform.cores))
    return analyzer


def _model(config: DictConfig) -> OnlineModel:
    """The verifier: trees grown anew, or a network with an adaptation method."""
    make = partial(build, config.model)
    model: Any = build_network(make, seed=0)
    if model.is_network:
        _check_network(model, "model")
        return _adapted(config, make)
    if not model.grows_online:
        raise PrunerError(f"{type(model).__name__}: tune.py takes a network or model=xgboost")
    if config.checkpoint is not None:
        raise PrunerError(f"checkpoint={config.checkpoint}: model=xgboost is grown anew; leave it")
    return TreeModel(seed=config.seed)


def _adapted(config: DictConfig, make_network: Callable[[], Network]) -> AdaptedModel:
    source = None if config.checkpoint is None else _source(Path(config.checkpoint))
    setting = Setting(make_network=make_network, source=source, seed=config.seed)
    adaptation = build(config.adaptation, setting=setting)
    if source is not None and isinstance(adaptation, Scratch):
        raise PrunerError(
            f"checkpoint={config.checkpoint}: adaptation=scratch throws its weights away; "
            "choose for example adaptation=finetune"
        )
    return AdaptedModel(adaptation)


def _source(path: Path) -> NeuralRanker:
    version = features.FEATURE_SET_VERSION
    ranker, info = load_checkpoint(checkpoint_file(path), feature_version=version)
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError(f"checkpoint={path}: trees cannot be adapted online")
    if info.dataflow != _DATAFLOW:
        raise PrunerError(
            f"checkpoint={path}: trained with features.dataflow={info.dataflow}; tune.py takes "
            f"models trained with features.dataflow={_DATAFLOW}"
        )
    _check_network(ranker.network, f"checkpoint={path}")
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
