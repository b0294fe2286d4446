"""What every door shares: configuration, run folders, the last line, errors in one line."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pruner.cli.options import check_options
from pruner.errors import DataError, PrunerError
from pruner.files import METRICS_FILE as METRICS_FILE
from pruner.files import jsonable as jsonable
from pruner.files import load_metrics as load_metrics
from pruner.files import save_metrics as save_metrics

CONF = Path(__file__).resolve().parents[2] / "conf"
CONFIG_FILE = "config.yaml"
# Options that a resumed run may be given anew: they change how it runs, not what it computes.
RESUMABLE = (
    "outputs",
    "run_id",
    "resume",
    "stop_after",
    "method",
    "num_threads",
    "num_workers",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.max_epochs",
)

_UNKNOWN_CHOICE = re.compile(
    r"Could not find '(.+?)'\s+Available options in '(.+?)':\s+(.*)", re.DOTALL
)

Task = Callable[[DictConfig], Mapping[str, Any]]


def say(line: str) -> None:
    """Tell the user something, on stderr."""
    print(line, file=sys.stderr, flush=True)


def run_door(config_name: str, task: Task) -> None:
    """Compose the configuration, run `task`, print its result as the last stdout line.

    A user's mistake ends as one line on stderr and exit code 2; a bug keeps its traceback. With
    ``-m`` the task runs once for every cell of the sweep (:mod:`pruner.cli.sweep`).
    """
    from pruner.cli.sweep import run_cell, sweep_name  # sweeps build on this module

    def checked(config: DictConfig) -> Mapping[str, Any]:
        check_options(config)
        try:
            return task(config)
        except MissingMandatoryValue as error:
            raise PrunerError(f"give {error.full_key}=, it has no default; see --help") from error

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
    def entry(config: DictConfig) -> None:
        logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
        try:
            if sweep_name() is not None:
                run_cell(checked, config)
            else:
                print_result(checked(config))
        except PrunerError as error:
            fail(str(error))
        except HydraException as error:  # an unknown choice is an OSError, too
            fail(_one_line(error))
        except OSError as error:  # a folder that cannot be written, a disk that is full
            fail(f"{error.filename or 'files'}: {error.strerror or error}")
        except OmegaConfBaseException as error:  # composed well, read wrongly: ours
            raise RuntimeError(str(error)) from error

    try:
        entry()
    except (HydraException, OmegaConfBaseException) as error:
        fail(_one_line(error))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    say(f"error: {message}")
    sys.exit(2)


def _one_line(error: Exception) -> str:
    """Shorten Hydra's message; of a wrong choice keep what there is to choose from."""
    text = str(error)
    missing = _UNKNOWN_CHOICE.search(text)
    if missing:
        wanted, group, options = missing.groups()
        known = ", ".join(options.split("Config search path")[0].split())
        return f"{group}={wanted.removeprefix(group + '/')} is unknown; known: {known}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "See https"))]
    return " ".join(kept[:2]) + "; see --help"


def build(config: DictConfig | Mapping[str, Any], **kwargs: Any) -> Any:
    """Instantiate a `_target_`; a value its constructor refuses becomes a PrunerError."""
    try:
        return instantiate(config, **kwargs)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, PrunerError):
            raise cause from None
        if isinstance(cause, ValueError | TypeError):
            raise PrunerError(str(cause).splitlines()[0]) from error
        raise


def print_result(result: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    print(json.dumps(jsonable(result)), flush=True)


def plain(config: Any) -> Any:
    """Resolve a configuration node into dicts, lists and scalars."""
    if OmegaConf.is_config(config):
        return OmegaConf.to_container(config, resolve=True)
    return config


def new_run_folder(outputs: Path, command: str, run_id: str | None, label: str) -> Path:
    """Make ``<outputs>/<command>/<run id>/``; a given id that exists is refused, never reused."""
    parent = outputs / command
    parent.mkdir(parents=True, exist_ok=True)
    name = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    # Two runs of one second: the later ones get a number.
    for candidate in [name] if run_id else [name, *(f"{name}-{i}" for i in range(2, 1000))]:
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        return parent / candidate
    raise PrunerError(
        f"run_id={name}: {parent / name} exists and is never overwritten; choose another"
    )


def save_config(folder: Path, config: DictConfig) -> None:
    """Write the resolved configuration beside what it produced."""
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")


def resumed_config(folder: Path, config: DictConfig) -> DictConfig:
    """Return the configuration of an earlier run, with the few overrides that may change.

    `config` is what the command line composed now. Raises DataError when the folder is no run,
    PrunerError when an override would change what is computed.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise DataError(f"resume={folder}: no {CONFIG_FILE} there; name a run folder")
    earlier = OmegaConf.load(path)
    assert isinstance(earlier, DictConfig), type(earlier)
    earlier.stop_after = None
    refused = []
    for override in HydraConfig.get().overrides.task:
        name = override.lstrip("+~").split("=")[0]
        value = plain(OmegaConf.select(config, name))
        if name in RESUMABLE:
            OmegaConf.update(earlier, name, value)
        elif value != plain(OmegaConf.select(earlier, name)):
            refused.append(override)
    if refused:
        raise PrunerError(
            f"resume continues the run as it was; leave out {' '.join(refused)}, or start a new run"
        )
    return earlier


def choice(group: str) -> str:
    """Which file of a configuration group was chosen."""
    return str(HydraConfig.get().runtime.choices[group])
