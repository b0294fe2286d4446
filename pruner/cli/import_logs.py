"""``pruner import_logs``: import Ansor logs or MetaSchedule databases as measure_records."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import counting
from pruner.data.importing import import_logs as import_folder
from pruner.data.metaschedule import find_databases
from pruner.data.quarantine import Quarantine
from pruner.errors import PrunerError
from pruner.paths import conf_folder
from pruner.program.te.recorded_task import TaskReader

REQUIRED = ("logs", "out", "platform")


def import_logs(config: DictConfig) -> dict[str, Any]:
    """Import logs; return the object of the last line."""
    missing = [f"{name}=" for name in REQUIRED if OmegaConf.is_missing(config, name)]
    if missing:
        raise PrunerError(
            f"missing {' '.join(missing)}; use: pruner import_logs logs=DIR out=DIR platform=NAME"
        )
    if config.compress not in ("none", "gz"):
        raise PrunerError(f"compress={config.compress} is unknown; use none or gz")
    start = time.monotonic()
    out, platform = Path(str(config.out)), str(config.platform)
    report = Path(str(config.report or out / f"quarantine-{platform}.jsonl"))
    databases, num_others = find_databases(Path(str(config.logs)))
    with Quarantine(report) as quarantine, counting("importing") as count:
        if databases:
            others = f"; {num_others} other files are not read" if num_others else ""
            say(f"databases of MetaSchedule: {len(databases)}{others}")
            # here, since it needs TVM, which takes seconds and other logs do not need
            importing = import_module("pruner.tune.pools.importing")
            result = importing.import_databases(
                databases, out, platform, quarantine, say, compression=config.compress
            )
        else:
            result = import_folder(
                Path(str(config.logs)),
                out,
                platform,
                quarantine,
                read_task=TaskReader(),
                compression=config.compress,
                progress=count,
            )
    if len(result.devices) > 1:
        most = result.devices.most_common(3)
        each = "; ".join(f"{num} of {name:.80} {list(numbers)}" for (name, numbers), num in most)
        say(
            f"records of {len(result.devices)} targets or hardware parameters: {each}. A platform "
            "is one device: import the logs of another device as another platform"
        )
    if not (conf_folder() / "platform" / f"{platform}.yaml").is_file():
        say(
            f"platform={platform} has no description yet, and train.py needs it: "
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
