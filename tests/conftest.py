"""Settings of every test: CPU, two threads, no network, reproducible Hypothesis."""

import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("large", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data beside the checkout; tests skip where it is absent."""
    path = REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip("development data is absent: no folder ../shared beside the checkout")
    return path
