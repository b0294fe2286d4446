"""``python evaluate.py``: judge a ranking of measured records against a random ranker."""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, own_models, plain, several
from pruner.cli.shared.output import as_table, say, show_tasks
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.records import kind_of, load_dataset, record_root, required_platforms
from pruner.cli.shared.runs import open_run
from pruner.data.networks import RecordedNetwork, chosen_networks, networks_of
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError, check_chosen
from pruner.files import save_metrics, write_table
from pruner.models.analyzer.choice import AnalyzerChoice
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.judging.judge import Report
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.assemble import small_tasks_removed
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.ranker import Ranker
from pruner.models.training.fit import ranker_of
from pruner.paths import conf_folder
from pruner.program.device import Device, device_from_mapping, load_device
from pruner.study.draft_quality import judge_draft
from pruner.study.training_run import NETWORK_MEANS, NETWORKS_FILE, TASKS_FILE

Judge = tuple[Ranker, CheckpointInfo | None] | AnalyzerChoice


def evaluate(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    judge = _judge(config)
    root = record_root(config.data, kind_of(config, judge[1] if isinstance(judge, tuple) else None))
    platforms = required_platforms(config, root)
    networks: tuple[RecordedNetwork, ...] = ()
    if config.networks is not None:
        networks = chosen_networks(networks_of(root.path), several(config.networks))
    folder = open_run(config, "evaluate", "-".join(platforms))
    if isinstance(judge, AnalyzerChoice):
        scored, report = _symbolic(config, judge, root, platforms, folder)
    else:
        scored, report = _learned(config, *judge, root, platforms, folder)
    judged = Report.of(scored, networks)
    write_table(folder / TASKS_FILE, judged.rows)
    if judged.networks:
        write_table(folder / NETWORKS_FILE, judged.network_rows)
    elif networks:
        say(f"no evaluated task belongs to networks={config.networks}")
    result = {
        **judged.metrics,
        "run_dir": str(folder),
        "checkpoint": config.checkpoint,
        **report,
        "seconds": round(time.perf_counter() - start, 2),
    }
    save_metrics(folder, result)
    numbers = {**judged.metrics, **judged.metrics["best_k"]}
    numbers |= {f"random_{name}": value for name, value in judged.metrics["random"].items()}
    model = Path(config.checkpoint or config.model._target_.rpartition(".")[2]).name
    tags = [*platforms, model]
    loggers.log_result(config, folder, numbers, judged.rows, under="judged", tags=tags)
    chance, ceiling = result["random"], result.get("ceiling", {})
    head = "  ceiling" if ceiling else ""
    say(f"{result['num_tasks']} tasks, {result['num_programs']:,} programs     ours   random{head}")
    means = [name for name in NETWORK_MEANS if name in result]
    for name in ("top1", "top5", "pairwise_accuracy", *means):
        best = f"  {ceiling[name]:7.4f}" if name in ceiling else ""
        say(f"{name:32s} {result[name]:7.4f}  {chance[name]:7.4f}{best}")
    for name, value in result["best_k"].items():
        say(f"{name:32s} {value:7.4f}  {chance['best_k'][name]:7.4f}")
    if judged.networks:
        say(as_table(judged.network_rows))
    show_tasks(folder / TASKS_FILE)
    return result


def _learned(
    config: DictConfig,
    ranker: Ranker,
    info: CheckpointInfo | None,
    root: RecordRoot,
    platforms: tuple[str, ...],
    folder: Path,
) -> tuple[list[ScoredTask], dict[str, Any]]:
    dataflow = info.dataflow if info else config.features.dataflow
    spec = ReadSpec(
        dataflow=dataflow,  # type: ignore[arg-type]
        duplicates=config.data.duplicates,
        draft=ranker.reads_draft,
        cache=config.data.cache,
    )
    dataset = load_dataset(root, platforms, spec, folder=folder)
    judged = _judged(config, dataset.store, info)
    index = small_tasks_removed(dataset.store, judged, config.min_programs)
    if not len(index):
        raise DataError(
            "no task is left to evaluate: all were used for training or have fewer than "
            f"min_programs={config.min_programs} programs; tasks=all evaluates them anyway"
        )
    start = time.perf_counter()
    scored = ranker.score_tasks(dataset.store, index)
    return scored, {
        "model": plain(config.model) if info is None else asdict(info.model),
        "scored_programs_per_second": _rate(len(index), start),
        "data": dataset.report(),
    }


def _symbolic(
    config: DictConfig,
    choice: AnalyzerChoice,
    root: RecordRoot,
    platforms: tuple[str, ...],
    folder: Path,
) -> tuple[list[ScoredTask], dict[str, Any]]:
    start = time.perf_counter()
    judged, report = judge_draft(
        root,
        platforms,
        choice,
        conf=conf_folder(),
        device_of=partial(_device, config),
        folder=folder,
        duplicates=config.data.duplicates,
        progress=ON_STDERR,
    )
    scored = [task for task in judged if task.num_programs >= config.min_programs]
    if not scored:
        raise DataError(
            f"no task is left to evaluate: all have fewer than min_programs={config.min_programs} "
            "programs or an unknown operator; lower min_programs"
        )
    return scored, {
        "model": plain(config.model),
        "scored_programs_per_second": _rate(sum(t.num_programs for t in scored), start),
        "data": report,
    }


def _device(config: DictConfig, platform: str) -> Device:
    if config.get("platform"):
        return device_from_mapping(plain(config.platform), origin="platform")
    return load_device(conf_folder() / "platform" / f"{platform}.yaml")


def _rate(num: int, start: float) -> int:
    return round(num / max(time.perf_counter() - start, 1e-9))


def _judge(config: DictConfig) -> Judge:
    model = config.get("model")
    check_chosen("tasks", [config.tasks], ("unseen", "all"))
    if (config.checkpoint is None) == (model is None):
        raise PrunerError(
            "give either checkpoint=FILE (of train.py) or model=symbolic or model=random"
        )
    if config.checkpoint is not None:
        return ranker_of(Path(config.checkpoint), own_models(config.models.own))
    built = build(model)
    if isinstance(built, AnalyzerChoice):
        return built
    if built.needs_fit:
        raise PrunerError("this model learns: train it with train.py and give checkpoint=FILE")
    return built, None


def _judged(config: DictConfig, store: ProgramTable, info: CheckpointInfo | None) -> Tensor:
    """Select programs to judge; by default of tasks unseen in training."""
    if info is None or config.tasks == "all":
        return torch.arange(store.num_programs)
    numbers = [number for number, key in enumerate(store.keys) if not info.has_seen(key)]
    if len(numbers) < len(store.keys):
        say(
            f"{len(store.keys) - len(numbers)} of {len(store.keys)} tasks left out: the checkpoint "
            "has seen them in training or validation (tasks=all keeps them)"
        )
    if not info.says_seen:
        say("the checkpoint has no complete list of seen tasks: some of these may be among them")
    elsewhere = info.identities & {store.keys[number].identity for number in numbers}
    if elsewhere:
        say(f"it has seen the workloads of {len(elsewhere)} evaluated tasks on another platform")
    return store.programs_of(numbers)
