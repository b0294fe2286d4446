"""``python import_logs.py``: raw Ansor logs into the measure_records layout."""

import os
import time
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from pruner.cli.door import fail
from pruner.cli.output import print_result, say
from pruner.data.importing import import_logs
from pruner.data.quarantine import Quarantine
from pruner.errors import PrunerError
from pruner.places import conf_folder
from pruner.program.te.fusion import fused_in_steps

# A folder of its own: in conf/, `platform` is a group of files and takes no plain name.
CONF = Path(__file__).resolve().parents[2] / "conf" / "import_logs"
REQUIRED = ("logs", "out", "platform")


def run(config: DictConfig) -> dict[str, Any]:
    """Import and return the object of the last line.

    Raises:
        PrunerError: an option is missing or wrong, or nothing could be imported.
    """
    missing = [f"{name}=" for name in REQUIRED if config.get(name) in (None, "???")]
    if missing:
        raise PrunerError(
            f"missing {' '.join(missing)}; "
            "use: python import_logs.py logs=DIR out=DIR platform=NAME"
        )
    if config.compress not in ("none", "gz"):
        raise PrunerError(f"compress={config.compress} is unknown; use none or gz")
    start = time.monotonic()
    out, platform = Path(str(config.out)), str(config.platform)
    report = Path(str(config.report or out / f"quarantine-{platform}.jsonl"))
    console = Console(stderr=True)
    with (
        Quarantine(report) as quarantine,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("importing", total=None)

        def show(done: int, total: int, records: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{records} records")

        result = import_logs(
            Path(str(config.logs)),
            out,
            platform,
            quarantine,
            fusion=fused_in_steps,
            compression=config.compress,
            progress=show,
        )
    if not (conf_folder() / "platform" / f"{platform}.yaml").is_file():
        say(
            f"platform={platform} has no description yet, which train.py asks for: "
            f"copy the nearest of conf/platform/*.yaml to conf/platform/{platform}.yaml "
            "and set its numbers"
        )
    return {
        "records": result.records,
        "failed": result.failed,
        "tasks": result.tasks,
        "files": result.files,
        "quarantined": result.quarantined,
        "report": str(report) if result.quarantined else None,
        "seconds": round(time.monotonic() - start, 3),
        "out": str(result.out),
    }


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="import_logs")
def _hydra_main(config: DictConfig) -> None:
    try:
        print_result(run(config))
    except PrunerError as error:
        fail(str(error))


def main() -> None:
    """Run the command; a mistake ends as one line on stderr and exit code 2."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        _hydra_main()
    except HydraException as error:
        fail(f"{str(error).splitlines()[0]}; see --help")


if __name__ == "__main__":
    main()
