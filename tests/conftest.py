"""Settings of every test: CPU, one thread, no network, reproducible Hypothesis."""

import gc
import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# One thread: tiny networks are slower on two, and sums in another order train to other weights.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
# The key with which runs are signed is not that of the user, nor are TVM's parsed instructions.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).resolve().parents[1] / ".cache" / "config")
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).resolve().parents[1] / ".cache" / "user")

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hypothesis import settings
from jaxtyping import install_import_hook

from tests import shapes
from tests.paths import REPOSITORY

# Where arrays are annotated with their shapes. Not program/dag: TVM looks at the signatures of its
# operators' functions.
SHAPES_CHECKED = [
    *(f"pruner.program.{name}" for name in ("index", "nests", "te", "tir")),
    "pruner.features",
    "pruner.models",
    "pruner.search",
]


# No test stops the machine, and a sync to the disk takes up to 40 ms: tests of the order of syncs
# put their own function here.
os.fsync = lambda descriptor: None

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("large", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--check-shapes``: arrays are checked against their annotations, as `make shapes` does."""
    parser.addoption(
        "--check-shapes",
        action="store_true",
        help="check arrays against the shapes in annotations: slow, wrappers around every call",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Install the check before any test file imports the package."""
    if config.getoption("--check-shapes"):
        # The hook imports the checker by the first part of its name, and pytest makes its own
        # `tests`.
        sys.modules["shapes"] = shapes
        install_import_hook(SHAPES_CHECKED, "shapes.arrays_checked")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what all test files have imported: 5 % of the seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data beside the checkout; tests skip where it is absent."""
    path = REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip("development data is absent: no folder ../shared beside the checkout")
    return path


@pytest.fixture
def quick_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of a network is timed for 0.4 s, not 9, whatever its caller asks for."""
    from pruner.tune.compare.benchmark import BenchmarkSettings, run_interleaved
    from pruner.tune.deploy import network

    settings = BenchmarkSettings(warm_up_s=0.1, rounds=3, turn_s=0.1)
    # not the defaults of functions, which are bound before this
    monkeypatch.setattr(
        network, "run_interleaved", lambda ours, place, _: run_interleaved(ours, place, settings)
    )


@pytest.fixture(scope="session", autouse=True)
def _files_of_options_are_parsed_once() -> None:
    """Hydra parses every file of every command line: a fifth of the seconds of a composition."""
    # looking for its plugins, Hydra makes this class anew: what was imported is another one
    Plugins.instance()
    source: Any = SourcesRegistry.instance().resolve("file")
    load, parsed = source.load_config, {}

    def load_config(self: Any, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if not path.is_file():  # Hydra's own error
            return load(self, config_path)
        key = path, path.stat().st_mtime_ns
        if key not in parsed:
            parsed[key] = load(self, config_path)
        return deepcopy(parsed[key])

    source.load_config = load_config


@pytest.fixture(scope="session", autouse=True)
def _equal_choices_are_composed_once() -> None:
    """A command keeps 64 compositions, which is enough for one command, not for all tests."""
    from pruner.cli.shared import known

    known._composed = cache(known._composed.__wrapped__)


@pytest.fixture(autouse=True)
def _tvm_is_complete() -> Iterator[None]:
    """A command for a CPU, run in this process, leaves no part of TVM out of later processes."""
    yield
    os.environ.pop("PRUNER_TVM_CPUS_ONLY", None)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """A test that chose a number of threads does not choose it for those after it."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
