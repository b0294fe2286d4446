"""The folder of a tuning run, and the options that resumption changes."""

from pathlib import Path

from omegaconf import DictConfig

from pruner.cli.shared.options import build, choice
from pruner.cli.shared.runs import new_run_folder, resumed_config, save_config
from pruner.errors import PrunerError
from pruner.tune.run.journal import JOURNAL_FILE

ENDS = ("trials", "seconds", "patience")  # of a budget
MORE = (*(f"budget.{name}" for name in (*ENDS, "tolerance")), "effort", "deploy")


def open_run(config: DictConfig, what: str) -> Path:
    """Create a folder for a tuning run, with the configuration in it.

    `what`: the tuned operator or network, for the folder's name.
    """
    folder = new_run_folder(Path(config.outputs), "tune", config.run_id, run_label(config, what))
    save_config(folder, config)
    return folder


def run_label(config: DictConfig, what: str) -> str:
    """Make the label that follows the time in a folder's name."""
    return f"{config.platform.name}-{what}-{choice('policy')}"


def resumed(folder: Path, given: DictConfig) -> DictConfig:
    """Read the configuration of an earlier run; extend its budget on request.

    A run that only drafted gets an effort that measures, normal by default, if a budget is given.

    Raises:
        PrunerError: another option was to change, or a run that measured was to draft only.
    """
    config = resumed_config(folder, given, more=MORE)
    if build(config.effort).measures:
        return config
    if (folder / JOURNAL_FILE).is_file():
        raise PrunerError(
            f"resume={folder}: this run has measured programs; leave effort= out (pruner deploy "
            f"run={folder} builds its network)"
        )
    if any(config.budget[end] is not None for end in ENDS):
        config.effort = given.effort
    return config
