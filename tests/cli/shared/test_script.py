"""Options of scripts."""

from dataclasses import dataclass, field

import pytest
from omegaconf import MISSING

from pruner.cli.shared.known import read_fields
from pruner.errors import PrunerError


@dataclass(kw_only=True)
class Options:
    """One without default, one with."""

    run: str = MISSING
    count: int = 1
    parts: list[str] = field(default_factory=list)


def test_an_option_without_default_can_be_given_and_must_be():
    assert read_fields(Options, ["run=here", "count=2"]) == Options(run="here", count=2)
    with pytest.raises(PrunerError, match="give run=, it has no default"):
        read_fields(Options, [])
    with pytest.raises(PrunerError, match=r"rum is unknown; did you mean run\?"):
        read_fields(Options, ["rum=here"])
    with pytest.raises(PrunerError, match=r"parts: a list; write parts=\[a,b\]"):
        read_fields(Options, ["run=here", "parts=a"])
