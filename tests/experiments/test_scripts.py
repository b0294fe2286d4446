"""Every script of experiments/ can be loaded: what it takes from the package is there."""

from dataclasses import dataclass

import pytest

from pruner.cli.shared.script import keep_tables
from pruner.errors import PrunerError, check_chosen
from tests.paths import REPOSITORY

ITEMS = sorted(path.parent.name for path in (REPOSITORY / "experiments").glob("*/run.py"))


@pytest.mark.parametrize("item", ITEMS)
def test_a_script_can_be_loaded(script, item):
    assert script(item)["HERE"].name == item


@dataclass
class Options:
    out: str
    trials: int = 64


def test_other_options_do_not_mix_with_the_rows_of_a_table(tmp_path):
    keep_tables(Options(out=str(tmp_path)), tmp_path, "trials")
    keep_tables(Options(out=str(tmp_path / "b"), trials=8), tmp_path, "trials")
    with pytest.raises(PrunerError, match="trials=8: it would replace rows of 64; add out=DIR"):
        keep_tables(Options(out=f"{tmp_path}/", trials=8), tmp_path, "trials")


def test_names_that_a_script_lacks_are_told():
    check_chosen("method", ["a", "a"], {"a": 1, "b": 2})
    with pytest.raises(PrunerError, match="method=c is unknown; known: a, b"):
        check_chosen("method", ["c", "a"], {"a": 1, "b": 2})
