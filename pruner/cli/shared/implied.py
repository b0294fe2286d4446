"""Choices that follow from another option where nobody makes them, for a run as for ``--help``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Implied:
    """Of `command` with ``option=``, `group` is `choice` instead of what its file says.

    An option of `unless` brings its own choice: that of an earlier run, or of an experiment.
    """

    command: str
    option: str
    group: str
    choice: str
    unless: Sequence[str] = ()


IMPLIED = (
    Implied(
        command="tune",
        option="network",
        group="policy",
        choice="pruner_network",
        unless=("resume", "plot", "experiment"),
    ),
)
_ABSENT = ("null", "")  # values of an option that is not given after all


def with_implied(command: str, words: Sequence[str]) -> list[str]:
    """The words of a command line, with the choices that follow from them in front."""
    pairs = (word.lstrip("+").partition("=") for word in words)
    given = {name: value for name, _, value in pairs if value not in _ABSENT}
    found = [
        f"{one.group}={one.choice}"
        for one in IMPLIED
        if one.command == command
        and one.option in given
        and not given.keys() & {one.group, *one.unless}
    ]
    return [*found, *words]
