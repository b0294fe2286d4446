"""From the training options of a command to a typed recipe, and to who follows its fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli import loggers
from pruner.cli.options import build, plain
from pruner.cli.sweep import sweep_name
from pruner.cli.training_progress import TrainingProgress
from pruner.models.judging.judge import Report
from pruner.models.registry import ModelFactory
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import build_network
from pruner.study.training import Part, Watch


def recipe_of(config: DictConfig) -> Recipe:
    """The recipe of ``train.py``'s options.

    Raises PrunerError for a value that a constructor refuses; the model is built once to see.
    """
    build_network(lambda: build(config.model), seed=0)
    trainer = plain(config.trainer)
    return Recipe(
        model=model_factory(config.model),
        loss=build(config.loss),
        optimizer=build(config.optimizer),
        schedule=build(config.schedule.factory) if config.schedule.factory else None,
        batches=build(config.batches),
        relative=bool(config.inputs.relative),
        scale=config.inputs.scale,
        monitor=config.monitor,
        train_share=config.train_share,
        train_pick=config.train_pick,
        min_programs=config.min_programs,
        epochs=trainer.pop("max_epochs"),
        trainer={name: value for name, value in trainer.items() if name != "_target_"},
        seed=config.seed,
        num_threads=config.num_threads,
    )


def model_factory(config: Any) -> ModelFactory:
    """The class of a model with the arguments that the options give."""
    factory: ModelFactory = build({**plain(config), "_partial_": True, "_convert_": "all"})
    return factory


@contextmanager
def watched(config: DictConfig, part: Part) -> Iterator[Watch]:
    """Progress on stderr, and the logger that the options name."""
    logger = build(config.logger)(
        folder=part.folder, name="/".join(_names(part)), about=_about(config, part)
    )

    def judged(metrics: Any, report: Report, checkpoint: Path) -> None:
        loggers.report(logger, metrics, report.rows, checkpoint)

    progress = TrainingProgress(part.name or part.folder.name)
    try:
        yield Watch(callbacks=[progress], loggers=[logger], judged=judged)
    finally:
        loggers.close(logger)


def _names(part: Part) -> tuple[str, ...]:
    depth = len(Path(part.name).parts)
    return part.folder.parts[-1 - depth :]


def _about(config: DictConfig, part: Part) -> loggers.About:
    """Named after the run and the part; grouped by the sweep, or by the run where it has parts."""
    group = sweep_name() or (_names(part)[0] if part.name else None)
    targets = (config.model._target_, config.loss._target_)
    words = [config.platform.name, *(t.rpartition(".")[2] for t in targets), part.split.name]
    return loggers.About(config=plain(config), group=group, tags=words)


def watching(config: DictConfig) -> Any:
    """`watched` for every part of a run."""
    return partial(watched, config)
