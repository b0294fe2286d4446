"""Networks that are built and run without another process."""

import pytest

from pruner.tune.compare.benchmark import BaselineTiming
from pruner.tune.compare.runners import TvmLibrary, save_outputs
from pruner.tune.deploy import build, network


@pytest.fixture
def in_process(monkeypatch, quick_networks):
    """No worker process for the build: what is tested is what happens in it."""
    monkeypatch.setattr(build, "ask", lambda _, job, *given, **__: getattr(build, job)(*given))


@pytest.fixture
def runs_here(monkeypatch):
    """No process for the run; the first test of test_build.py has one without torch."""

    def ran(baselines, folder, _):
        (one,) = baselines
        runner = TvmLibrary(**one.arguments, threads=one.threads)
        save_outputs(runner, one.arguments["inputs"], folder / f"{one.name}-outputs.npz")
        return [BaselineTiming(name=one.name, label=one.label, facts=runner.facts)]

    monkeypatch.setattr(network, "run_interleaved", ran)
