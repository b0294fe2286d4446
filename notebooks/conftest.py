"""Notebooks are slow tests: each starts a kernel of its own, and one tunes."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow)
