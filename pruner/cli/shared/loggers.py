"""Log curves and results: CSV files, TensorBoard, Weights & Biases."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from netrc import NetrcParseError, netrc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning_fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from pruner.cli.shared.options import build, plain, several
from pruner.cli.shared.sweep import sweep_name
from pruner.errors import MissingExtra, PrunerError


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A run's description: configuration, group of runs, and tags."""

    config: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    tags: Sequence[str] = ()


def check(config: DictConfig) -> None:
    """Make the logger and drop it: what it refuses is refused before any work."""
    with TemporaryDirectory() as folder:
        build(config.logger)(folder=Path(folder), name="check")


def _start(folder: Path) -> str:
    """Name a new sub-folder for every start: earlier curves are kept."""
    return f"start-{sum(1 for _ in folder.glob('start-*'))}"


def csv(*, folder: Path, name: str, about: About | None = None) -> Logger:
    """Log into ``<folder>/start-<n>/metrics.csv``; descriptions are beside it."""
    return CSVLogger(str(folder), name="", version=_start(folder))


def tensorboard(*, folder: Path, name: str, about: About | None = None) -> Logger:
    """Write TensorBoard event files; raise `MissingExtra` without TensorBoard."""
    try:
        return TensorBoardLogger(str(folder), name="", version=_start(folder))
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", "tensorboard") from error


def has_wandb_key() -> bool:
    """Check for a W&B key in the environment or the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc().authenticators("api.wandb.ai") is not None
    except (OSError, NetrcParseError):
        return False


def wandb(
    *,
    folder: Path,
    name: str,
    about: About | None = None,
    project: str = "pruner",
    group: str | None = None,
    tags: str | Sequence[str] = (),
    offline: bool | None = None,
    **kwargs: Any,
) -> Logger:
    """Log to Weights & Biases, offline without a key or on request.

    `tags` are added to those of the run, `group` replaces its own, `kwargs` are arguments of
    Lightning's logger and ``wandb.init``; others raise `PrunerError`.
    """
    try:
        from wandb import init
    except ImportError as error:
        raise MissingExtra("wandb", "wandb") from error
    from pytorch_lightning.loggers import WandbLogger

    ours = {"kwargs", "save_dir", "config"}
    known = {*signature(WandbLogger).parameters, *signature(init).parameters} - ours
    if unknown := sorted(kwargs.keys() - known):
        raise PrunerError(
            f"logger.{unknown[0]} is unknown; wandb.init takes {', '.join(sorted(known))}"
        )

    alone = not has_wandb_key() if offline is None else offline
    if not (alone or has_wandb_key()):
        _log_in()
    about = about or About()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        logger = WandbLogger(
            save_dir=str(folder.resolve()),
            name=name,
            project=project,
            offline=alone,
            config=dict(about.config),
            group=group or about.group,
            tags=[*about.tags, *several(tags)],
            **kwargs,
        )
    except MisconfigurationException as error:
        raise PrunerError(f"logger: {str(error).splitlines()[0]}") from error
    logger._wandb_init.pop("anonymous", None)  # deprecated by W&B, and always set by Lightning
    return logger


def _log_in() -> None:
    import wandb

    try:
        wandb.login(verify=False)
    except wandb.Error as error:
        raise PrunerError(f"logger.offline=false: {str(error).splitlines()[0]}") from error


def report(
    logger: Logger,
    metrics: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    checkpoint: Path | None = None,
    *,
    under: str = "test",
) -> None:
    """Send W&B ``<under>/<name>`` numbers, a table of tasks, and the checkpoint.

    The other loggers need none of it: all lies in the run folder. The artifact refers to the file
    there instead of copying it until the upload.
    """
    from pytorch_lightning.loggers import WandbLogger

    if not isinstance(logger, WandbLogger):
        return
    import wandb

    run = logger.experiment
    numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
    if tasks:
        columns: list[Any] = list(tasks[0])
        rows: list[Any] = [[row[name] for name in columns] for row in tasks]
        run.log({f"{under}/tasks": wandb.Table(columns=columns, data=rows)})
    run.summary.update({f"{under}/{name}": value for name, value in numbers.items()})
    if checkpoint is not None:
        artifact = wandb.Artifact(f"checkpoint-{run.id}", type="model", metadata=numbers)
        artifact.add_file(str(checkpoint.resolve()), policy="immutable", skip_cache=True)
        run.log_artifact(artifact)


def log_result(
    config: DictConfig,
    folder: Path,
    numbers: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    under: str,
    tags: Sequence[str],
    group: str | None = None,
    step: int = 0,
) -> None:
    """Log a result without curves: numbers, and a table of rows."""
    about = About(config=plain(config), group=group or sweep_name(), tags=tags)
    logger = build(config.logger)(folder=folder, name=folder.name, about=about)
    finite = {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    try:
        logger.log_metrics(finite, step=step)
        logger.save()
        report(logger, finite, rows, under=under)
    finally:
        close(logger)


def close(logger: Logger) -> None:
    """End a W&B run, so that nothing follows our last line."""
    from pytorch_lightning.loggers import WandbLogger

    if isinstance(logger, WandbLogger):
        import wandb

        wandb.finish()
