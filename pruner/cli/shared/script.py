"""Run scripts of ``experiments/`` like commands, with a dataclass of options."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import MISSING, OmegaConf

from pruner.cli.shared.door import mistakes_in_one_line, sigterm_as_ctrl_c
from pruner.cli.shared.known import HELP, read_fields
from pruner.cli.shared.output import print_result, say
from pruner.errors import PrunerError

Options = TypeVar("Options")


@dataclass(kw_only=True)
class Data:
    """``data.root``: folder that holds ``measure_records/<platform>/``."""

    root: str = MISSING


def keep_tables(options: Any, home: Path, *names: str) -> None:
    """Refuse values that would mix or replace rows of the tables in `home` (`PrunerError`).

    These options have their default values there: other values need another ``out=``.
    """
    for name in names:
        value, usual = getattr(options, name), getattr(type(options), name)
        if value != usual and Path(options.out).resolve() == home:
            raise PrunerError(f"{name}={value}: it would replace rows of {usual}; add out=DIR")


def run_script(
    kind: type[Options], run: Callable[[Options], Mapping[str, Any]], about: str | None
) -> None:
    """Run a script on the command line; print its last line."""
    words = sys.argv[1:]
    if HELP & set(words):
        say(f"{about}\nOptions and their values:\n{OmegaConf.to_yaml(OmegaConf.structured(kind))}")
        return
    with mistakes_in_one_line(), sigterm_as_ctrl_c():  # a script's processes end with it
        print_result(run(read_fields(kind, words)))
