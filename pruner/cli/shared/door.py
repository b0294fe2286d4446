"""A door: read the command line, run the command, print its last line; errors in one line.

A command ``name`` is ``conf/name.yaml`` (its options and its help) and ``pruner/cli/name.py``.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pruner.cli.shared.help import commands, help_text, list_of_commands
from pruner.cli.shared.known import Asked, nearest, read_words
from pruner.cli.shared.options import check_options
from pruner.cli.shared.output import (
    UNSUCCESSFUL,
    UNSUCCESSFUL_CODE,
    print_result,
    print_text,
    say,
)
from pruner.cli.shared.runs import last_checkpoint
from pruner.cli.shared.sweep import run_cell, sweep_name
from pruner.errors import PrunerError
from pruner.places import conf_folder

_UNKNOWN_CHOICE = re.compile(
    r"Could not find '(.+?)'\s+Available options in '(.+?)':\s+(.*)", re.DOTALL
)
_FOREIGN_PRESET = re.compile(r"In 'experiment/(\w+)': Could not override '(\w+)")

HELP = {"-h", "--help"}
LAST = "last"  # checkpoint=last: that of the newest run
OUTPUTS = "outputs"  # where it is looked for by commands that make no runs of their own there
Task = Callable[[DictConfig], Mapping[str, Any]]


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what has to be put away is."""


def main() -> None:
    """``pruner COMMAND ...``: every command behind one word."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = commands()
    if command in HELP:
        print_text(list_of_commands())
    elif command not in known:
        near = nearest(command, set(known))
        fail(f"{command} is no command; " + (f"did you mean {near}?" if near else "see --help"))
    else:
        sys.argv[:2] = [f"pruner {command}"]
        open_door(command)


def open_door(command: str) -> None:
    """Run a command on ``sys.argv``; its module, and what it imports, is loaded only for work."""
    if not show_help(command):
        import_module(f"pruner.cli.{command}").main()


def show_help(command: str) -> bool:
    """Print the command's help where it is asked for."""
    words = sys.argv[1:]
    if not HELP & set(words):
        return False
    try:
        asked = read_words(command, [word for word in words if not word.startswith("-")])
        print_text(help_text(command, asked.words))
    except PrunerError as error:
        fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        fail(_one_line(error))
    return True


def run_door(command: str, task: Task) -> None:
    """Compose the configuration, run `task`, print its result as the last stdout line.

    A user's mistake ends as one line on stderr and exit code 2; a bug keeps its traceback; a result
    that names parts as ``unsuccessful`` has exit code 3. With
    ``-m`` the task runs once for every cell of the sweep (:mod:`pruner.cli.shared.sweep`).
    """
    if show_help(command):
        return
    try:
        asked = read_words(command, sys.argv[1:])
        sys.argv[1:] = asked.words
        with sigterm_as_ctrl_c():
            _entry(command, task, asked)()
    except PrunerError as error:
        fail(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        fail(_one_line(error))
    except KeyboardInterrupt as asked_to_end:
        say("interrupted")
        number = signal.SIGTERM if isinstance(asked_to_end, Terminated) else signal.SIGINT
        sys.exit(128 + number)


@contextmanager
def command_config(command: str, words: Sequence[str]) -> Iterator[DictConfig]:
    """The configuration of a command as `words` of a command line give it, for a call in Python.

    What belongs to Hydra is as in the command meanwhile, and afterwards as it was: the caller may
    be somebody's Hydra application.

    Raises:
        PrunerError: words that the command would refuse.
    """
    before, own = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    try:
        asked = read_words(command, words)
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            whole = compose(command, overrides=list(asked.words), return_hydra_config=True)
        HydraConfig.instance().set_config(whole)
        config = whole.copy()
        with open_dict(config):
            del config["hydra"]
        check_options(config, asked.defaults)
        yield config
    except (HydraException, OmegaConfBaseException) as error:
        raise PrunerError(_one_line(error)) from error
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = before, own


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
    """In a forked process, which whoever forked it may end: nothing of ours is to be put away."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_at_once)


def _entry(command: str, task: Task, asked: Asked) -> Callable[[], None]:
    """What Hydra calls, once or for every cell, of options that are all known."""

    def checked(config: DictConfig) -> Mapping[str, Any]:
        check_options(config, asked.defaults)
        if config.get("checkpoint") == LAST:
            config.checkpoint = str(last_checkpoint(Path(config.get("outputs", OUTPUTS))))
            say(f"checkpoint={config.checkpoint}")
        try:
            return task(config)
        except MissingMandatoryValue as error:
            raise PrunerError(f"give {error.full_key}=, it has no default; see --help") from error

    os.environ.setdefault("HYDRA_FULL_ERROR", "1")

    @hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=command)
    def entry(config: DictConfig) -> None:
        logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
        for name, value in asked.own.items():
            config[name] = value
        try:
            if sweep_name() is not None:
                run_cell(checked, config)
            else:
                result = checked(config)
                print_result(result)
                if result.get(UNSUCCESSFUL):
                    sys.exit(UNSUCCESSFUL_CODE)
        except PrunerError as error:
            fail(str(error))
        except HydraException as error:  # an unknown choice is an OSError, too
            fail(_one_line(error))
        except OSError as error:  # a folder that cannot be written, a disk that is full
            fail(f"{error.filename or 'files'}: {error.strerror or error}")
        except OmegaConfBaseException as error:  # composed well, read wrongly: ours
            raise RuntimeError(str(error)) from error

    found: Callable[[], None] = entry
    return found


def fail(message: str) -> NoReturn:
    """End with one line, whatever the message of a library has, and exit code 2."""
    say(f"error: {' '.join(line.strip() for line in message.splitlines() if line.strip())}")
    sys.exit(2)


def _one_line(error: Exception) -> str:
    """Shorten Hydra's message; of a wrong choice keep what there is to choose from."""
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
