"""A forecaster whose drafts are made in this process."""

import pytest

from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.networks.draft_task import Depth
from pruner.tune.networks.filtering.forecaster import NetworkForecaster
from pruner.tune.networks.lowering import NetworkFormat
from tests.tune.networks.filtering.in_process import use_no_processes
from tests.tune.targets import platform_of


@pytest.fixture
def drafts_here(monkeypatch):
    return use_no_processes(monkeypatch)


@pytest.fixture
def make(drafts_here):
    """Make a forecaster for a platform without a run."""
    platform = platform_of("cpu-avx2")
    depth = Depth(sample=32, rounds=0)

    def made(drafts=None, seed=0):
        given = platform, platform_analyzer(platform), NetworkFormat(layout="NHWC")
        return NetworkForecaster(*given, drafts=drafts, seed=seed, depth=depth)

    return made
