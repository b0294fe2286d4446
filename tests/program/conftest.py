"""Fixtures of the program room."""

from pathlib import Path

import pytest

from tests.program.tenset_tasks import unpack_network_info


@pytest.fixture(scope="session")
def network_info(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with TenSet's task files."""
    return unpack_network_info(shared, tmp_path_factory.mktemp("network_info"))
