"""Fit one model on one split, judge its best epoch, write both down. Repeatable and resumable."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from lightning_fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger
from torch import Tensor

from pruner import features
from pruner.cli import loggers
from pruner.cli.options import build, plain
from pruner.cli.sweep import sweep_name
from pruner.cli.training_progress import TrainingProgress
from pruner.data.frozen import Side
from pruner.data.splits import Split
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics, save_metrics
from pruner.models.checkpoint.checkpoint import (
    CheckpointInfo,
    git_commit,
    load_checkpoint,
    save_checkpoint,
)
from pruner.models.judging.metrics import ScoredTask
from pruner.models.judging.summary import full_report, task_rows
from pruner.models.model import Network
from pruner.models.programs.assemble import (
    divide,
    sampled,
    sampled_tasks,
    seen_tasks,
    small_tasks_removed,
)
from pruner.models.programs.pruning import spread
from pruner.models.programs.store import ProgramStore
from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.registry import ModelSpec
from pruner.models.training.datamodule import RankingData
from pruner.models.training.lit import RankingModule
from pruner.models.training.training import build_network, fit_network, quiet_lightning
from pruner.models.trees.xgboost import TreeRanker

BEST = "best.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One fit of a run: a split, a seed, and the folder that holds its results."""

    name: str
    folder: Path
    split: Split
    seed: int

    @property
    def checkpoint(self) -> Path:
        """Weights of the best epoch."""
        return self.folder / BEST


def check_fit(config: DictConfig) -> None:
    """Build once everything that a fit builds: a value that it refuses is told before any work.

    Raises PrunerError, also for a device that this machine does not have.
    """
    for name in ("model", "loss", "optimizer", "batches"):
        if config[name].get("_partial_"):
            continue  # needs what the fit makes
        built: Any = build_network(partial(build, config[name]), seed=0)
        if name == "model" and not built.needs_fit:
            raise PrunerError(
                "this model has nothing to train; use evaluate.py with the same model="
            )
    _trainer(config, logger=False)


def _trainer(config: DictConfig, **options: Any) -> Trainer:
    """Lightning's Trainer without its advice; of its refusals only the first line."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    try:
        with quiet_lightning():
            trainer: Trainer = build(config.trainer, **options)
    except InstantiationException as error:
        if isinstance(error.__cause__, MisconfigurationException):
            raise PrunerError(f"trainer: {str(error.__cause__).splitlines()[0]}") from error
        raise
    return trainer


def run_part(config: DictConfig, store: ProgramStore, part: Part) -> dict[str, Any] | None:
    """Fit and judge, or take up what an earlier start already finished.

    None when `stop_after` ended the fit early. Sets torch's threads to ``config.num_threads``
    unless it is null: more of them round sums otherwise, and another epoch may be the best.
    """
    finished = load_metrics(part.folder) if part.name else None
    if finished is not None:
        return finished
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    part.folder.mkdir(parents=True, exist_ok=True)
    logger = _open_logger(config, part)
    try:
        return _run_part(config, store, part, logger)
    finally:
        loggers.close(logger)


def _run_part(
    config: DictConfig, store: ProgramStore, part: Part, logger: Logger
) -> dict[str, Any] | None:
    sides = divide(store, part.split)
    pick = {"random": sampled, "spread": spread, "tasks": sampled_tasks}[config.train_pick]
    sides["train"] = pick(store, sides["train"], config.train_share, part.seed)
    start = time.perf_counter()
    fitted = _fit(config, store, part, sides, logger)
    if fitted is None:
        return None
    ranker, _ = load_checkpoint(part.checkpoint)
    scored = scored_tasks(ranker, store, sides["test"], config.min_programs)
    metrics = {
        "seed": part.seed,
        "num_threads": torch.get_num_threads(),
        "checkpoint": str(part.checkpoint),
        **full_report(scored),
        **fitted,
        "train_pick": config.train_pick,
        "split": part.split.name,
        "split_fingerprint": part.split.fingerprint,
        "fit_seconds": round(time.perf_counter() - start, 2),
    }
    loggers.report(logger, metrics, task_rows(scored), part.checkpoint)
    if part.name:
        save_metrics(part.folder, metrics)
    return metrics


def _open_logger(config: DictConfig, part: Part) -> Logger:
    """Named after the run and the part; grouped by the sweep, or by the run where it has parts."""
    depth = len(Path(part.name).parts)
    names = part.folder.parts[-1 - depth :]
    group = sweep_name() or (names[0] if depth else None)
    targets = (config.model._target_, config.loss._target_)
    words = [config.platform.name, *(t.rpartition(".")[2] for t in targets), part.split.name]
    about = loggers.About(config=plain(config), group=group, tags=words)
    logger: Logger = build(config.logger)(folder=part.folder, name="/".join(names), about=about)
    return logger


def scored_tasks(ranker: Ranker, store: ProgramStore, test: Tensor, least: int) -> list[ScoredTask]:
    """Score the test programs; raises DataError when no task has `least` of them."""
    index = small_tasks_removed(store, test, least)
    if not len(index):
        raise DataError(f"no test task has {least} programs; lower min_programs")
    return ranker.score_tasks(store, index)


def _fit(
    config: DictConfig,
    store: ProgramStore,
    part: Part,
    sides: Mapping[Side, Tensor],
    logger: Logger,
) -> dict[str, Any] | None:
    model: Any = build_network(lambda: build(config.model), part.seed)
    info = _info(config, store, sides)
    if isinstance(model, TreeRanker):
        rounds = model.fit(
            store,
            sides["train"],
            sides["valid"],
            seed=part.seed,
            num_threads=torch.get_num_threads(),
        )
        save_checkpoint(part.checkpoint, model, info)
        return {"num_rounds": rounds, "num_train_programs": len(sides["train"])}
    return _fit_network(config, store, part, sides, model, info, logger)


def _fit_network(
    config: DictConfig,
    store: ProgramStore,
    part: Part,
    sides: Mapping[Side, Tensor],
    network: Network,
    info: CheckpointInfo,
    logger: Logger,
) -> dict[str, Any] | None:
    relative = bool(config.inputs.relative)
    store = store.relative() if relative else store
    scaler = store.fit_scaler(sides["train"], config.inputs.scale)
    ranker = NeuralRanker(network, scaler, relative=relative)
    module = RankingModule(
        ranker,
        loss=build(config.loss),
        optimizer=build(config.optimizer),
        schedule=build(config.schedule.factory) if config.schedule.factory else None,
    )
    data = RankingData(
        store,
        train=sides["train"],
        valid=sides["valid"],
        batches=build(config.batches),
        seed=part.seed,
    )
    progress = TrainingProgress(part.name or str(part.folder.name))

    def save(metrics: dict[str, float]) -> None:
        save_checkpoint(part.checkpoint, ranker, info_with(info, metrics))

    result = fit_network(
        module,
        data,
        folder=part.folder,
        make_trainer=partial(_trainer, config),
        save_best=save,
        monitor=config.monitor,
        callbacks=[progress],
        loggers=[logger],
        stop_after=config.get("stop_after"),
    )
    if not result.finished:
        return None
    return {
        "monitor": config.monitor,
        "best_valid": result.best_value,
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "num_train_programs": len(sides["train"]),
        "train_programs_per_second": round(progress.programs_per_second),
    }


def info_with(info: CheckpointInfo, metrics: Mapping[str, float]) -> CheckpointInfo:
    """The same description with metrics."""
    fields = {name: getattr(info, name) for name in CheckpointInfo.__dataclass_fields__}
    return CheckpointInfo(**{**fields, "metrics": metrics})


def _info(config: DictConfig, store: ProgramStore, sides: Mapping[Side, Tensor]) -> CheckpointInfo:
    return CheckpointInfo(
        model=ModelSpec.from_content(plain(config.model)),
        feature_version=features.FEATURE_SET_VERSION,
        dataflow=config.features.dataflow,
        config=plain(config),
        git_commit=git_commit(),
        seen_tasks=seen_tasks(store, (sides["train"], sides["valid"])),
    )


def ranker_of(path: Path) -> tuple[Ranker, CheckpointInfo]:
    """Load a checkpoint that must fit the features of this installation."""
    return load_checkpoint(path, feature_version=features.FEATURE_SET_VERSION)
