"""``python adapt.py``: compare adaptation methods by online tuning on recorded pools."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, own_models, plain, several
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.recipe_options import recipe_of, watching
from pruner.cli.shared.records import record_root
from pruner.cli.shared.runs import continued, epochs_before, open_run
from pruner.cli.shared.start import check_contradicted
from pruner.data.splits import TaskSplit
from pruner.errors import PrunerError, check_chosen
from pruner.files import load_metrics, read_table, save_metrics
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.analyzer.analyzer import Analyzer, load_analyzer
from pruner.models.programs.program_table import ProgramTable
from pruner.models.registry import models_with
from pruner.models.training.fit import check_recipe, start_of
from pruner.models.training.recipe import Start
from pruner.paths import conf_folder
from pruner.search.gradient import DescentSettings
from pruner.search.policy import RoundSettings
from pruner.study.adaptation.cells import REFERENCES, Cells, compare, run_cells, summary_rows
from pruner.study.adaptation.context import Budget, prepare
from pruner.study.training_run import Fold, run_fold

Methods = Mapping[str, Mapping[str, Any]]  # name to class and arguments


def adapt(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    config, earlier = continued(config)
    known = known_methods(plain(config.get("variants") or {}))
    _check(config, known)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    if earlier is not None and load_metrics(earlier / "source") is not None:
        epochs = epochs_before(earlier)
        if config.trainer.max_epochs != epochs:
            raise PrunerError(
                f"resume={earlier}: the source model is trained, with trainer.max_epochs={epochs}; "
                "leave trainer.max_epochs= out, or start a new run"
            )
    folder = open_run(config, "adapt", f"{config.source}-{config.target}", earlier)
    cells, seeds = Cells(folder=folder), list(config.seeds)
    names = dict.fromkeys([*names_of(config, known), *cells.finished(known, seeds)])
    wanted = [(name, seed) for seed in seeds for name in names]
    missing = cells.missing(wanted)
    if missing:
        _run_cells(config, cells, missing, known)
    done = [cells.load(one) for one in wanted]
    found = compare(done, config.baseline, config.source, config.target, folder)
    say(as_table(summary_rows(found["methods"])))
    result = {
        **found,
        "seeds": seeds,
        "trials": config.budget.trials,
        "source_top1_before": (load_metrics(folder / "source") or {}).get("top1"),
        "run_dir": str(folder),
        "seconds": round(time.perf_counter() - start, 2),
    }
    save_metrics(folder, result)
    numbers = {
        f"{name}/{unit}": means[unit]["mean"]
        for name, means in found["methods"].items()
        for unit in ("area", "final", "trials_to_target", "seconds_to_target")
    }
    loggers.log_result(
        config, folder, numbers, read_table(Path(found["results"])), under="adapted",
        tags=[config.source, config.target], step=config.budget.trials,
    )  # fmt: skip
    return result


def known_methods(variants: Methods) -> Methods:
    """Read conf/adaptation; add variants, other arguments for the method `of`."""
    folder = conf_folder() / "adaptation"
    known = {path.stem: plain(OmegaConf.load(path)) for path in sorted(folder.glob("*.yaml"))}
    for name, given in variants.items():
        if not isinstance(given, Mapping):
            raise PrunerError(f"variants.{name}={given}: give {{of: METHOD, ARGUMENT: VALUE}}")
        changes = dict(given)
        base = changes.pop("of", None)
        check_chosen(f"variants.{name}: of", [base], known)
        if name in known:
            raise PrunerError(f"variants.{name}: conf/adaptation has a method of that name")
        known[name] = {**known[base], **changes}
    return known


def names_of(config: DictConfig, known: Methods) -> list[str]:
    """List baseline, references and methods, each once; refuse unknown names."""
    methods = list(known) if config.method == "all" else several(config.method)
    references = several(config.references)
    for name in (config.baseline, *methods):
        if name not in known:
            raise PrunerError(f"method={name} is unknown; known: {', '.join(known)}, all")
    for name in references:
        if name not in REFERENCES:
            raise PrunerError(f"references: {name} is unknown; known: {', '.join(REFERENCES)}")
    return list(dict.fromkeys([config.baseline, *references, *methods]))


def _run_cells(
    config: DictConfig, cells: Cells, missing: Sequence[tuple[str, int]], known: Methods
) -> None:
    given, folder = None, cells.folder

    def train(programs: ProgramTable, split: TaskSplit) -> Start:
        fold = Fold(name="source", folder=folder / "source", split=split, seed=config.seed)
        recipe = recipe_of(config)
        run_fold(recipe, programs, fold, config=plain(config), watching=watching(config))
        return start_of(fold.checkpoint, _classes(config))

    if config.checkpoint is not None:
        given = start_of(Path(config.checkpoint), _classes(config))
    context = prepare(
        record_root(config.data),
        config.source,
        config.target,
        budget := Budget(**plain(config.budget)),
        analyzer=_draft(config),
        train=train,
        given=given,
        dataflow=config.features.dataflow,
        draft=given is None and check_recipe(recipe_of(config)).reads_draft,
        models=models_with(_classes(config)),
        cache=None if config.data.cache is None else Path(config.data.cache),
        seed=config.seed,
        progress=ON_STDERR,
    )
    quality = context.source_quality() if given else None
    if quality is not None:  # a model trained here is judged as it is trained
        (folder / "source").mkdir(exist_ok=True)
        save_metrics(folder / "source", {"top1": quality.top1, "top5": quality.top5})

    def make(name: str, setting: Setting) -> Adaptation:
        made: Adaptation = build(known[name], setting=setting)
        return made

    run_cells(
        cells,
        missing,
        context,
        budget,
        build(config.policy),
        make,
        title=f"{config.source} to {config.target}",
        num_workers=config.num_workers or 1,
        progress=ON_STDERR,
    )


def _draft(config: DictConfig) -> Analyzer:
    return load_analyzer(conf_folder(), config.target, form=config.draft.form)


def _classes(config: DictConfig) -> list[type[Any]]:
    return own_models([*config.models.own, config.model._target_])


def _check(config: DictConfig, known: Methods) -> None:
    if config.source is None or config.target is None:
        raise PrunerError(
            "give source=PLATFORM and target=PLATFORM, such as source=k80 target=v100"
        )
    if config.source == config.target:
        raise PrunerError(f"source and target are both {config.source}; choose two platforms")
    if config.seeds is None:
        raise PrunerError("give seeds=[...] with at least one seed")
    if (config.num_workers or 1) > 1 and config.num_threads != 1:
        raise PrunerError(
            f"num_workers={config.num_workers} num_threads={config.num_threads}: several processes "
            "have one thread each; give num_threads=1, or num_workers=1"
        )
    root = record_root(config.data)
    for platform in (config.source, config.target):
        root.task_files(platform)  # raises where there are none
    _draft(config)  # raises where the target has no such form
    if config.checkpoint:
        check_contradicted(config, _classes(config))
    elif not check_recipe(recipe_of(config)).is_network:
        raise PrunerError("model: adaptation needs a neural model, such as model=pacm_narrow")
    policy = build(config.policy)
    if not isinstance(policy, RoundSettings) or isinstance(policy, DescentSettings):
        raise PrunerError("adapt.py compares models in rounds: policy=pool, ansor or pruner_*")
    if policy.first == "lm":
        raise PrunerError(
            "policy.first=lm: the programs of recorded pools have no tokens for the language "
            "model; leave it out"
        )
    names_of(config, known)
