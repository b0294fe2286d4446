"""Settings of every test: CPU, one thread, no network, reproducible Hypothesis."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# One thread: tiny networks are slower on two, and sums in another order train to other weights.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests import shapes

# Array shapes in the annotations of the models and of the features' container hold in every test.
# Only there: wrappers around every call would triple the time of the program and feature tests.
# The hook imports the checker by the first part of its name, and pytest makes its own `tests`.
sys.modules["shapes"] = shapes
install_import_hook(["pruner.models", "pruner.features.batch"], "shapes.arrays_checked")

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


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """A test that chose a number of threads does not choose it for those after it."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
