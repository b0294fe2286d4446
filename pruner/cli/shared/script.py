"""Scripts of ``experiments/``: typed options as ``name=value``, one last line, errors in one line.

A script's options are the fields of a dataclass, whose defaults and types are theirs. They are
given as to the commands, lists as ``[a,b]``; ``--help`` shows them with the script's docstring.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pruner.cli.shared.door import fail, sigterm_as_ctrl_c
from pruner.cli.shared.output import print_result, say
from pruner.errors import PrunerError

Options = TypeVar("Options")


@dataclass(kw_only=True)
class Data:
    """``data.root``: folder that holds ``measure_records/<platform>/``."""

    root: str = MISSING


def options_of(kind: type[Options], words: Sequence[str]) -> Options:
    """The options that the words of a command line give.

    Raises PrunerError for a word that is no option, a value of another type, or one not given.
    """
    defaults = OmegaConf.structured(kind)
    known = {name.partition(".")[0] for name in _names(kind)}  # one without default is one too
    for word in words:
        name, given, _ = word.partition("=")
        if not given or (
            OmegaConf.select(defaults, name, throw_on_missing=False) is None
            and name.split(".")[0] not in known
        ):
            raise PrunerError(f"{word}: options are name=value; known: {', '.join(_names(kind))}")
    try:
        config = OmegaConf.merge(defaults, OmegaConf.from_dotlist(list(words)))
        return cast(Options, OmegaConf.to_object(config))
    except MissingMandatoryValue as error:
        raise PrunerError(f"give {error.full_key}=, it has no default") from error
    except OmegaConfBaseException as error:
        if "is not a ListConfig" in str(error):
            raise PrunerError(f"{error.full_key}: a list; write {error.full_key}=[a,b]") from error
        raise PrunerError(f"{error.full_key}: {str(error).splitlines()[0]}") from error


def _names(kind: type[Any]) -> list[str]:
    container = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.structured(kind)))
    return [
        f"{name}.{inner}" if isinstance(value, dict) else name
        for name, value in container.items()
        for inner in (value if isinstance(value, dict) else [""])
    ]


def run_script(
    kind: type[Options], run: Callable[[Options], Mapping[str, Any]], about: str | None
) -> None:
    """Run a script with the options of the command line and print its result as the last line."""
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        say(f"{about}\nOptions and their values:\n{OmegaConf.to_yaml(OmegaConf.structured(kind))}")
        return
    try:
        with sigterm_as_ctrl_c():  # what a script started ends with it
            print_result(run(options_of(kind, words)))
    except PrunerError as error:
        fail(str(error))
    except OSError as error:  # a folder that cannot be written, a disk that is full
        fail(f"{error.filename or 'files'}: {error.strerror or error}")
    except KeyboardInterrupt:
        say("interrupted; the same command continues")
        sys.exit(130)
