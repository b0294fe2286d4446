"""Which notebooks take more than a few seconds."""

import pytest

SLOW = {"network.ipynb"}  # it tunes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)
