"""A task that is tuned in a second."""

import pytest

from pruner.tune import operator


@pytest.fixture(scope="session")
def small(tvm):
    return operator("matmul", m=32, n=32, k=32)
