"""Options of scripts."""

from dataclasses import dataclass, field

import pytest
from omegaconf import MISSING

from pruner.cli.shared.script import options_of
from pruner.errors import PrunerError


@dataclass(kw_only=True)
class Options:
    """One without default, one with."""

    run: str = MISSING
    count: int = 1
    parts: list[str] = field(default_factory=list)


def test_an_option_without_default_can_be_given_and_must_be():
    assert options_of(Options, ["run=here", "count=2"]) == Options(run="here", count=2)
    with pytest.raises(PrunerError, match="give run=, it has no default"):
        options_of(Options, [])
    with pytest.raises(PrunerError, match="known: run, count, parts"):
        options_of(Options, ["rum=here"])
    with pytest.raises(PrunerError, match=r"parts: a list; write parts=\[a,b\]"):
        options_of(Options, ["run=here", "parts=a"])
