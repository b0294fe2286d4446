"""``python train.py``: fit a cost model on measured records."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from pruner.cli.shared.door import OUTPUTS
from pruner.cli.shared.options import choice, plain, words_of
from pruner.cli.shared.output import as_table, say, show_tasks
from pruner.cli.shared.recipe_options import recipe_of, watching
from pruner.cli.shared.records import (
    bundled_of,
    chosen_platforms,
    load_dataset,
    record_root,
    split_of,
)
from pruner.cli.shared.runs import continued, epochs_before, open_run, save_config
from pruner.cli.shared.start import log_blind, log_start, log_unchanged, start_from
from pruner.data.frozen import BUNDLED
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError
from pruner.features.device_vector import platform_kind
from pruner.files import METRICS_FILE, as_written, load_metrics, save_metrics
from pruner.models.model import Model
from pruner.models.programs.dataset import Dataset
from pruner.models.programs.reading import ReadSpec
from pruner.models.training.fit import check_recipe, cpu_threads
from pruner.study.grid import Job, results
from pruner.study.training_run import (
    NETWORK_MEANS,
    TASKS_FILE,
    Fold,
    judging_folds,
    plan,
    run_fold,
    summarise,
)

_SHOWN = ("top1", "top5", "pairwise_accuracy")  # of every part, when a run ends


def train(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    began = time.perf_counter()
    config, earlier = continued(config)
    start = start_from(config)
    recipe = recipe_of(config)
    model = check_recipe(recipe, goes_on=start is not None)
    store = config.store
    spec = ReadSpec(
        dataflow=config.features.dataflow,
        duplicates=config.data.duplicates,
        draft=model.reads_draft,
        failures=config.train_failures,
        cache=config.data.cache,
        # earlier runs name a class as store
        stream=store.get("stream", str(store.get("_target_")).endswith(".Vectors")),
    )
    root = record_root(config.data, bundled_of(config.platform.name))
    own = chosen_platforms(config.data, config.platform.name, root)
    if own and earlier is None:
        _refuse_leave_out(config)
    platforms = own or _teachers(config, root)
    num_workers = _num_workers(config)
    folder = _open_run(config, earlier, platforms)
    # before the records are read: a process whose torch has used several threads must not fork
    with _log_to(folder), cpu_threads(1 if num_workers > 1 else None):
        dataset = load_dataset(root, platforms, spec, folder=folder)
        _log_about(config, model, dataset)
        keys = dataset.store.keys
        folds = plan(
            keys,
            folder=folder,
            split=split_of(config.split, keys, root),
            seeds=[config.seed] if config.seeds is None else list(config.seeds),
            leave_out=() if own else _left_out(config, sorted({key.platform for key in keys})),
        )
        fit_fold = partial(
            run_fold,
            recipe,
            dataset.store,
            config=plain(config),
            watching=watching(config),
            stop_after=config.stop_after,
            start=start,
        )
        if start is not None:
            log_start(start, folds)
        if len(folds) > 1 and num_workers > 1:
            jobs = [
                Job(name=fold.name, run=partial(fit_fold, fold), leaves=fold.folder / METRICS_FILE)
                for fold in folds
            ]
            again = f"resume={folder} tries it again"
            list(results(jobs, num_workers=num_workers, log=say, again=again))
        # each fit, or the result that it has left
        found = {fold.name: fit_fold(fold) for fold in folds}
        if start is not None:
            log_blind(start, list(found.values()))
            log_unchanged(found)
    result = {
        "run_dir": str(folder),
        "went_on_from": None if start is None else start.inherited["lineage"],
        "data": dataset.report(),
        **summarise(folds, found, transfer=not own),
        "seconds": round(time.perf_counter() - began, 2),
    }
    if result["finished"]:
        save_metrics(folder, result)
        _log_end(config, model, folds, result)
    return result


def _num_workers(config: DictConfig) -> int:
    number: int = config.get("num_workers") or 1  # runs of earlier versions have no such option
    if number == 1:
        return 1
    trainer, remedy = plain(config.trainer), "or give num_workers=1"
    ends = (config.stop_after, trainer.get("max_steps"), trainer.get("max_time"))
    if config.num_threads != 1 or any(end is not None for end in ends):
        raise PrunerError(
            f"num_workers={number}: several processes have one thread each and fit to the end; "
            "leave num_threads= and stop_after= out (also trainer.max_steps=, trainer.max_time=), "
            f"{remedy}"
        )
    on_gpus = trainer.get("accelerator") != "cpu" and torch.cuda.is_available()
    if trainer.get("devices", 1) != 1 or on_gpus:
        raise PrunerError(
            f"num_workers={number}: the fits would share the GPUs, or the processes of a fit; give "
            f"trainer.accelerator=cpu and trainer.devices=1, {remedy}"
        )
    return number


def _log_end(
    config: DictConfig, model: Model, folds: Sequence[Fold], result: dict[str, Any]
) -> None:
    judges = judging_folds(folds)
    first = judges[0]
    of = f"{first.name}, part 1 of {len(judges)}: each folder has its own" if first.name else ""
    show_tasks(first.folder / TASKS_FILE, num_tasks=result["num_tasks"], of=of)
    say("")
    say(_learned(folds, result))
    found = dict(result["parts"])
    if len(found) > 1:
        found |= {"mean": result, "spread": result["spread"]}
    found["chance"] = result["random"]
    if "ceiling" in result:
        found["ceiling"] = result["ceiling"]
    shown = [*_SHOWN, *(name for name in NETWORK_MEANS if name in result)]
    say(as_table([{"": row, **{n: found[row].get(n) for n in shown}} for row in found]))
    say("top1: the fastest program's latency over that of the program ranked first (1: found it)")
    say(f"checkpoint: {result['checkpoint']}")
    say(f"next: {_next_command(config, model, result)}")


def _learned(folds: Sequence[Fold], result: dict[str, Any]) -> str:
    split, names = folds[0].split, ", ".join(result["data"]["platforms"])
    if split.by_rows:
        return f"trained on a part of every task of {names}, tested on the rest"
    tested = f"tested on {result['num_tasks']} others, {result['num_programs']:,} programs"
    if judging_folds(folds)[0].left_out is not None:
        tested = f"tested on each of them, left out of a training: {result['num_tasks']} tasks"
    trained = f"trained on {len(split.train)} tasks of {names}"
    return f"{trained}; epoch chosen on {len(split.valid)}; {tested}"


def _next_command(config: DictConfig, model: Model, result: dict[str, Any]) -> str:
    """Suggest a command that uses the checkpoint, with its needs as comment."""
    used = "last" if str(config.outputs) == OUTPUTS else Path(result["checkpoint"]).parent
    if model.reads_primitives:
        return f"python evaluate.py checkpoint={used}"
    tune = f"python tune.py platform={config.platform.name} workload=matmul"
    needs = "without the device, add compile_only=true"
    gpu = config.platform.kind == "gpu"
    if gpu and config.data.root is None:
        # The cards of the bundled GPU programs: the draft alone chooses better programs for a GPU.
        return f"{tune}  # does not use the new model; {needs}"
    # experiments/adaptation: distillation suits sources of many GPU records, fine-tuning of few.
    way = ("distill" if gpu else "finetune") if model.is_network else "none"
    return f"{tune} checkpoint={used} adaptation={way}  # {needs}"


def _open_run(config: DictConfig, earlier: Path | None, platforms: Sequence[str]) -> Path:
    if earlier is not None:
        _reopen(earlier, config)
        return earlier
    if config.seeds is not None and (words := words_of("seed")):
        raise PrunerError(f"{' '.join(words)}: seeds= gives the seed of each fit; leave one out")
    given = config.data.platform
    names = given if isinstance(given, str) else "+".join(platforms)
    model = choice("model")
    if config.checkpoint is not None:
        model = f"{config.model._target_.rpartition('.')[2].lower()}-goes-on"
    return open_run(config, "train", f"{config.platform.name if given is None else names}-{model}")


def _reopen(folder: Path, config: DictConfig) -> None:
    """Reopen a run; with more epochs, number the results of fewer."""
    epochs, before = config.trainer.max_epochs, epochs_before(folder)
    done = {path: _epochs_of(path) for path in sorted(folder.rglob(METRICS_FILE))}
    most, is_finished = max(done.values(), default=0), folder / METRICS_FILE in done
    if is_finished and epochs <= max(before, most):
        raise PrunerError(
            f"resume={folder}: this run is finished (metrics.json); "
            f"a larger trainer.max_epochs=N continues it"
        )
    if is_finished and most < before:
        raise PrunerError(
            f"resume={folder}: this run is finished, and nothing is left to train (trees, or fits "
            "that patience= ended)"
        )
    if epochs < most:
        raise PrunerError(
            f"resume={folder}: a fit of {most} epochs is finished; give trainer.max_epochs={most} "
            "or more"
        )
    if epochs > before:
        for path, number in done.items():
            path.rename(path.with_name(f"metrics-{number}-epochs.json"))
        save_config(folder, config)  # a later start continues with these options


def _epochs_of(path: Path) -> int:
    with as_written(path):
        return int((load_metrics(path.parent) or {}).get("epochs", 0))


@contextmanager
def _log_to(folder: Path) -> Iterator[None]:
    handler = logging.FileHandler(folder / "run.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.getLogger("pruner").addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"python train.py resume={folder} continues")
        raise
    finally:
        logging.getLogger("pruner").removeHandler(handler)
        handler.close()


def _teachers(config: DictConfig, root: RecordRoot) -> tuple[str, ...]:
    platform, known = config.platform.name, ", ".join(root.platforms)
    if config.data.root is None:
        own = BUNDLED[config.platform.kind]
        say(
            f"no records of {platform}: learning from the bundled ones of its kind ({known}: "
            f"{own.what}); for a better model give data.root=DIR ({own.better})"
        )
        return root.platforms
    nothing = f"{root.path} has no records of {platform}, only of {known}"
    if len(root.platforms) < 2:
        raise PrunerError(f"{nothing}; learning from others takes two of them")
    others = _others(config, root.platforms)
    if others and config.leave_out is None:
        raise PrunerError(
            f"{nothing}, which are no {config.platform.kind}s: name another data.root=, or add "
            "leave_out=all to learn from these all the same"
        )
    say(
        f"no records of {platform} in {root.path}: learning from {known}, "
        "judged by leaving out one platform at a time"
        + (f"; {', '.join(others)}: another kind of device" if others else "")
    )
    return root.platforms


def _refuse_leave_out(config: DictConfig) -> None:
    if str(config.leave_out) not in ("None", "none", "[]"):
        raise PrunerError(
            f"leave_out={config.leave_out}: it needs a platform= without records, and no "
            "data.platform=; leave it out"
        )


def _left_out(config: DictConfig, platforms: Sequence[str]) -> Sequence[str]:
    """List platforms to leave out in turn; by default no bundled platform."""
    unasked = () if config.data.root is None else platforms
    choices: dict[str, Sequence[str]] = {"None": unasked, "all": platforms, "none": ()}
    chosen = choices.get(str(config.leave_out))
    return list(config.leave_out) if chosen is None else chosen


def _others(config: DictConfig, platforms: Sequence[str]) -> list[str]:
    own = (config.platform.kind, None)
    return [name for name in platforms if platform_kind(name) not in own]


def _log_about(config: DictConfig, model: Model, dataset: Dataset) -> None:
    others = _others(config, dataset.platforms)
    if others and config.data.platform is not None:
        say(
            f"the records of {', '.join(others)} are of another kind of device than "
            f"platform={config.platform.name} ({config.platform.kind}), which only names the run"
        )
    if model.num_dataflow_rows is not None and not dataset.store.has_dataflow:
        say(
            "no program of these records has a dataflow pattern (the release's rows have none for "
            f"CPUs): {type(model).__name__} learns from its statement features alone"
        )
