"""Run a command, ``conf/name.yaml`` and ``pruner/cli/name.py``: print its last line or error."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pruner.cli.shared.help import commands, help_text, list_of_commands
from pruner.cli.shared.known import HELP, CommandLine, nearest, read_words
from pruner.cli.shared.options import check_logger, check_options
from pruner.cli.shared.output import (
    UNSUCCESSFUL,
    UNSUCCESSFUL_CODE,
    print_result,
    print_text,
    say,
)
from pruner.cli.shared.runs import last_checkpoint
from pruner.cli.shared.sweep import run_cell
from pruner.errors import PrunerError
from pruner.paths import conf_folder

_UNKNOWN_CHOICE = re.compile(
    r"Could not find '(.+?)'\s+Available options in '(.+?)':\s+(.*)", re.DOTALL
)
_FOREIGN_PRESET = re.compile(r"In 'experiment/(\w+)': Could not override '(\w+)")

LAST = "last"  # checkpoint=last: the checkpoint of the newest run
OUTPUTS = "outputs"  # folder of runs, for commands without an option outputs=
Task = Callable[[DictConfig], Mapping[str, Any]]


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, which ends a command as Ctrl-C, with cleanup."""


def main() -> None:
    """Run ``pruner COMMAND ...``."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = commands()
    if command in HELP:
        print_text(list_of_commands())
    elif command not in known:
        near = nearest(command, set(known))
        fail(f"{command} is no command; " + (f"did you mean {near}?" if near else "see --help"))
    else:
        run_door(command, sys.argv[2:])


def open_door(command: str) -> None:
    """Run a command on the words of this process's command line."""
    run_door(command, sys.argv[1:])


def run_door(command: str, words: Sequence[str], task: Task | None = None) -> None:
    """Run a command, or `task`, on words; print its result as last line.

    Its module is loaded once every option is right. A user's mistake is one line and exit code 2, a
    bug keeps its traceback, a result with ``unsuccessful`` parts has code 3; ``-m`` runs a sweep.
    """
    with mistakes_in_one_line(), sigterm_as_ctrl_c():
        command_line = read_words(command, words)
        if HELP & set(words):
            print_text(help_text(command, command_line))
        elif command_line.sweep:
            _sweep(command, command_line, partial(_run, command, task))
        else:
            with _as_hydra_has_it(command_line):
                result = _run(command, task, command_line.config)
            print_result(result)
            if result.get(UNSUCCESSFUL):
                sys.exit(UNSUCCESSFUL_CODE)


@contextmanager
def command_config(command: str, words: Sequence[str]) -> Iterator[DictConfig]:
    """Compose a command's configuration for a call in Python; raise `PrunerError` for wrong words.

    Hydra's state is restored afterwards: the caller may be another Hydra application.
    """
    try:
        command_line = read_words(command, words)
        with _as_hydra_has_it(command_line):
            yield command_line.config
    except (HydraException, OmegaConfBaseException) as error:
        raise PrunerError(_one_line(error)) from error


@contextmanager
def _as_hydra_has_it(command_line: CommandLine) -> Iterator[None]:
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(command_line.hydra)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def _run(command: str, task: Task | None, config: DictConfig) -> Mapping[str, Any]:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    if config.get("checkpoint") == LAST:
        config.checkpoint = str(last_checkpoint(Path(config.get("outputs", OUTPUTS))))
        say(f"checkpoint={config.checkpoint}")
    try:
        check_logger(config)
        return (task or getattr(import_module(f"pruner.cli.{command}"), command))(config)
    except MissingMandatoryValue as error:
        raise PrunerError(f"give {error.full_key}=, it has no default; see --help") from error
    except OmegaConfBaseException as error:  # composed well, read wrongly: a bug
        raise RuntimeError(str(error)) from error


def _sweep(command: str, command_line: CommandLine, run: Task) -> None:
    if "gather" not in (command_line.hydra.hydra.callbacks or {}):
        raise PrunerError(f"{command} has no sweeps; run it once for each choice")

    def checked(config: DictConfig) -> Mapping[str, Any]:
        check_options(config, command_line.defaults)
        return run(config)

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        words = [*command_line.words, "hydra.mode=MULTIRUN"]  # which `sweep_name` reads in a cell
        hydra.multirun(command, partial(run_cell, checked), words)


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """End the process with a line for errors of user or machine."""
    try:
        yield
    except PrunerError as error:
        fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:  # an unknown choice: an OSError, too
        fail(_one_line(error))
    except OSError as error:  # a folder that cannot be written, a disk that is full
        fail(f"{error.filename or 'files'}: {error.strerror or error}")
    except KeyboardInterrupt as asked_to_end:
        say("interrupted")
        number = signal.SIGTERM if isinstance(asked_to_end, Terminated) else signal.SIGINT
        sys.exit(128 + number)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside the body."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> None:
    raise Terminated


def _end_at_once() -> None:
    """Restore SIGTERM in a forked process, which has nothing to clean up."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_at_once)


def fail(message: str) -> NoReturn:
    """Print a message as a single line and exit with code 2."""
    say(f"error: {' '.join(line.strip() for line in message.splitlines() if line.strip())}")
    sys.exit(2)


def _one_line(error: Exception) -> str:
    text = str(error)
    missing = _UNKNOWN_CHOICE.search(text)
    if missing:
        wanted, group, options = missing.groups()
        known = ", ".join(options.split("Config search path")[0].split())
        return f"{group}={wanted.removeprefix(group + '/')} is unknown; known: {known}"
    if foreign := _FOREIGN_PRESET.search(text):
        name, chosen = foreign.groups()
        return (
            f"experiment={name} is of another command: it chooses {chosen}=, which this one has "
            f"not; conf/experiment/{name}.yaml begins with the name of its command"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key", "object_type", "See https"))]
    return " ".join(kept[:2]) + "; see --help"
