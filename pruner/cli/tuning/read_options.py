"""Convert the options of a tuning run to typed values; refuse contradictions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hydra.utils import get_class
from omegaconf import DictConfig

from pruner.cli.shared.options import build, own_models, plain, several, words_of
from pruner.cli.shared.output import say
from pruner.cli.shared.recipe_options import model_factory
from pruner.cli.shared.start import check_contradicted
from pruner.cli.tuning.platform import chosen_platform, load_draft
from pruner.errors import PrunerError
from pruner.models.adaptation.base import Adaptation
from pruner.models.adaptation.warm import Scratch
from pruner.models.training.fit import checkpoint_file
from pruner.models.training.training import build_network
from pruner.search.gradient import NO_ANALYZER, DescentSettings
from pruner.search.objectives import Objective
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import MeasureSettings, Platform
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.rivals.metaschedule import MetaSchedule
from pruner.tune.run.learning import OnlineModel
from pruner.tune.run.tune_options import TuneOptions
from pruner.tune.run.verifier import verifier

FINALISTS = 6  # of a task of a network on this machine's CPU
TIMING = ("number", "repeats", "cv_limit", "stop_above", "min_repeat_ms", "flush_cache")


def tune_options(config: DictConfig) -> TuneOptions:
    """Convert the options to typed values; raise `PrunerError` for contradictions."""
    policy = build(config.policy)
    if config.network is not None and isinstance(policy, Ansor):  # before its import
        raise PrunerError(
            f"network={config.network}: {type(policy).__name__} tunes one named operator a run; "
            "choose another policy"
        )
    platform = chosen_platform(config, measures=not config.compile_only)
    analyzer = load_draft(platform, config.draft.form)
    if isinstance(policy, DescentSettings) and analyzer is None:
        raise PrunerError(NO_ANALYZER)
    make_model = None
    _check_adaptation(config, learns=policy.takes_model and config.verify)
    of_model = [] if config.checkpoint is None else [f"checkpoint={config.checkpoint}"]
    if policy.takes_model and config.verify:
        make_model = _verifier(config)
    elif of_model := of_model + words_of("model"):
        raise PrunerError(
            f"{' '.join(of_model)}: nothing would use it; it needs verify=true and a policy such "
            "as pruner_live"
        )
    network, objective = config.network is not None, Objective.of(plain(config.objective))
    return TuneOptions(
        platform=platform,
        policy=policy,
        budget=build(config.effort).budget(plain(config.budget), None),
        num_reference=16 if network else 64,
        refit=config.refit,
        kernels=not network,
        measure=_measure_settings(config, platform, objective, policy),
        analyzer=analyzer,
        make_model=make_model,
        order=config.task_order,
        draft_all=network and policy.trusts_draft,
        replay_only=config.spaces == "replay",
        compile_only=config.compile_only,
        work_dir=None if config.work_dir is None else Path(config.work_dir),
        warm_start=[Path(name) for name in several(config.warm_start)],
        objective=objective,
        seed=config.seed,
    )


def _measure_settings(
    config: DictConfig, platform: Platform, objective: Objective, policy: object
) -> MeasureSettings:
    """Convert ``measure``; some of its defaults depend on the other options."""
    options, network = plain(config.measure), config.network is not None
    for name in ("device", "devices"):  # parts of the platform
        options.pop(name, None)
    timing = Timing(**{k: options.pop(k) for k in TIMING})
    if network and options["lag"] is None and not isinstance(policy, MetaSchedule):
        options["lag"] = 1  # programs of a task are chosen while those of another are built
    if options["baseline"] is None:
        options["baseline"] = not network  # a minute of unscheduled loops, of no use for networks
    if options["finalists"] is None:
        is_local_cpu = platform.device == "cpu" and platform.shares_cpu
        times = network and is_local_cpu and objective.is_latency and not config.compile_only
        options["finalists"] = FINALISTS if times else 0
    if options["finalists"] and not objective.is_latency:
        raise PrunerError(
            f"measure.finalists={options['finalists']} looks for the fastest program; leave it out "
            f"with objective={objective}"
        )
    return MeasureSettings(timing=timing, sizes=objective.has_size, **options)


def _check_adaptation(config: DictConfig, *, learns: bool) -> None:
    model, way = (config[name]._target_ for name in ("model", "adaptation"))
    if get_class(way) is Scratch or (learns and getattr(get_class(model), "is_network", False)):
        return
    reason = f"{model.rpartition('.')[2]} is grown anew" if learns else "no model learns"
    raise PrunerError(
        f"adaptation: {way.rpartition('.')[2]} would not be used, {reason}; it needs a network, "
        "verify=true and a policy such as pruner_live"
    )


def adaptation_of(config: DictConfig) -> Callable[..., Adaptation]:
    """Make the adaptation's constructor, with ``online_fit`` as default fit."""
    make, way = partial(build, config.adaptation), get_class(config.adaptation._target_)
    if (
        config.online_fit is None
        or config.adaptation.get("fit") is not None
        or not getattr(way, "learns", False)
    ):
        return make
    return partial(make, fit=build(config.online_fit))


def _verifier(config: DictConfig) -> Callable[[], OnlineModel]:
    given, own = config.checkpoint, own_models(config.models.own)
    build_network(lambda: build(config.model), seed=0)  # raises for arguments its class refuses
    if given is not None:
        check_contradicted(config, own)
    return verifier(
        model_factory(config.model),
        adaptation_of(config),
        checkpoint=None if given is None else checkpoint_file(Path(given)),
        platform=config.platform.name,
        seed=config.seed,
        relative=config.inputs.relative,
        standard=config.inputs.scale == "standard",
        log=say,
        own=own,
    )
