"""Every script of experiments/ can be loaded: what it takes from the package is there."""

import pytest

from tests.paths import REPOSITORY

ITEMS = sorted(path.parent.name for path in (REPOSITORY / "experiments").glob("*/run.py"))


@pytest.mark.parametrize("item", ITEMS)
def test_a_script_can_be_loaded(script, item):
    assert script(item)["HERE"].name == item
