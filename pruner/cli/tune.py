"""``python tune.py``: tune programs on real hardware.

What measures nothing is done here, without the seconds that torch and its loggers take to import;
the rest is :mod:`pruner.cli.tuning.session`.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.door import run_door
from pruner.cli.shared.options import build, plain
from pruner.cli.shared.output import say
from pruner.cli.tuning.folder import resumed
from pruner.cli.tuning.network import draft_run, list_run
from pruner.errors import PrunerError
from pruner.tune.measure.machine import local_platform

LOCAL = "cpu"  # platform=cpu: the described CPU that fits this machine


def tune(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    if config.plot is not None:
        from pruner.cli.tuning.session import plot

        return plot(config)
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed(earlier, config)
    effort = build(config.effort)
    if config.network is not None and config.list:
        return list_run(config, earlier)
    if config.network is not None and not effort.measures:
        effort.budget(plain(config.budget), None)  # refuses what would not be spent
        _check_drafted(config)
        return draft_run(config, earlier)
    if config.list:
        raise PrunerError("list=true lists the tasks of a network: add network=NAME")
    if not effort.measures:
        raise PrunerError("effort=draft drafts the tasks of a network: add network=NAME")
    from pruner.cli.tuning.session import tune_run

    return tune_run(config, effort, earlier)


def _check_drafted(config: DictConfig) -> None:
    """Raise `PrunerError` for an option that only a run that measures could follow."""
    for name in ("checkpoint", "warm_start", "compile_only"):
        if config[name]:
            raise PrunerError(
                f"{name}={config[name]}: effort=draft measures and learns nothing; leave it out"
            )


def main() -> None:
    """Open the door; without platform= (or with platform=cpu) this machine's CPU is meant."""
    given = [word for word in sys.argv[1:] if word.startswith("platform=")]
    words = [word for word in sys.argv[1:] if word not in ("-m", "--multirun")]
    asked = not any(word.startswith(("resume=", "plot=", "-")) for word in words)
    if given == [f"platform={LOCAL}"] or (not given and asked):
        try:
            rest = [word for word in sys.argv[1:] if word not in given]
            host = [] if any(word.startswith("target=") for word in rest) else ["target=host"]
            sys.argv[1:] = [*rest, f"platform={local_platform()}", *host]
        except PrunerError as error:
            say(f"error: {error}")
            sys.exit(2)
    run_door("tune", tune)


if __name__ == "__main__":
    main()
