"""The folder of a tuning run, and what a resumed run may be given anew."""

from pathlib import Path

from omegaconf import DictConfig

from pruner.cli.shared.options import choice
from pruner.cli.shared.runs import new_run_folder, save_config

MORE = (*(f"budget.{name}" for name in ("trials", "seconds", "patience", "tolerance")), "deploy")


def open_run(config: DictConfig, what: str) -> Path:
    """A new folder for tuning `what`, with the configuration in it."""
    label = f"{config.platform.name}-{what}-{choice('policy')}"
    folder = new_run_folder(Path(config.outputs), "tune", config.run_id, label)
    save_config(folder, config)
    return folder
