"""``python tune.py``: tune programs on real hardware.

What measures nothing is done here, without the seconds that torch and its loggers take to import;
the rest is :mod:`pruner.cli.tuning.session`.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.options import build, plain
from pruner.cli.shared.output import print_result
from pruner.cli.tuning.folder import resumed
from pruner.cli.tuning.interrupts import Interrupted
from pruner.cli.tuning.network import draft_run, list_run
from pruner.errors import PrunerError


def tune(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    if config.plot is not None:
        from pruner.cli.tuning.session import plot

        return plot(config)
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed(earlier, config)
    try:
        return run(config, earlier)
    except Interrupted as ended:
        print_result(ended.result)
        sys.exit(ended.exit_code)


def run(config: DictConfig, folder: Path | None) -> dict[str, Any]:
    """What the options ask for, in a new folder or in a run's own; the object of the last line.

    Raises:
        Interrupted: Ctrl-C or SIGTERM ended it early; ``folder`` has what it found until then.
    """
    effort = build(config.effort)
    if config.network is not None and config.list:
        return list_run(config, folder)
    if config.network is not None and not effort.measures:
        effort.budget(plain(config.budget), None)  # refuses what would not be spent
        _check_drafted(config)
        return draft_run(config, folder)
    if config.list:
        raise PrunerError("list=true lists the tasks of a network: add network=NAME")
    if not effort.measures:
        raise PrunerError("effort=draft drafts the tasks of a network: add network=NAME")
    from pruner.cli.tuning.session import tune_run

    return tune_run(config, effort, folder)


def _check_drafted(config: DictConfig) -> None:
    """Raise `PrunerError` for an option that only a run that measures could follow."""
    for name in ("checkpoint", "warm_start", "compile_only"):
        if config[name]:
            raise PrunerError(
                f"{name}={config[name]}: effort=draft measures and learns nothing; leave it out"
            )
