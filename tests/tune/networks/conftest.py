"""The target of most networks."""

import pytest

from tests.tune.targets import target_of


@pytest.fixture(scope="session")
def target(tvm):
    """A CPU of one core."""
    return target_of(1)
