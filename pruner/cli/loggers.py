"""Where the curves of a run go: CSV files, TensorBoard or Weights & Biases."""

import os
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from pruner.errors import MissingExtra


def _start(folder: Path) -> str:
    """A new sub-folder for every start of a run: a resumed run keeps the curves before it."""
    return f"start-{sum(1 for _ in folder.glob('start-*'))}"


def csv(*, folder: Path, name: str) -> Logger:
    """``<folder>/start-<n>/metrics.csv``; `name` is not needed, the folder says it."""
    return CSVLogger(str(folder), name="", version=_start(folder))


def tensorboard(*, folder: Path, name: str) -> Logger:
    """TensorBoard event files under the run folder. Raises MissingExtra without the package."""
    try:
        return TensorBoardLogger(str(folder), name="", version=_start(folder))
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", "tensorboard") from error


def has_wandb_key() -> bool:
    """Whether W&B could upload: a key in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc().authenticators("api.wandb.ai") is not None
    except (OSError, NetrcParseError):
        return False


def wandb(
    *, folder: Path, name: str, project: str = "pruner", offline: bool | None = None, **kwargs: Any
) -> Logger:
    """Weights & Biases; offline unless a key is found or `offline` says otherwise.

    An offline run is uploaded later with ``wandb sync``. Raises MissingExtra without the package.
    """
    try:
        import wandb as _  # noqa: F401  # only to tell early and kindly that it is missing
    except ImportError as error:
        raise MissingExtra("wandb", "wandb") from error
    from pytorch_lightning.loggers import WandbLogger

    alone = not has_wandb_key() if offline is None else offline
    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(save_dir=str(folder), name=name, project=project, offline=alone, **kwargs)


def close(logger: Logger) -> None:
    """End a W&B run here: the next fit starts its own, and nothing follows our last line."""
    from pytorch_lightning.loggers import WandbLogger

    if isinstance(logger, WandbLogger):
        logger.experiment.finish()
