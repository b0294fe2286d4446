"""Scripts of experiments/, which no package holds."""

import runpy
from functools import partial

import pytest

from experiments.live import live
from pruner.search.offline.adaptation_run import bootstrap_interval


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(live, "bootstrap_interval", partial(bootstrap_interval, resamples=200))


@pytest.fixture
def script(repository):
    """The names that ``experiments/<item>/run.py`` defines."""
    return lambda item: runpy.run_path(str(repository / f"experiments/{item}/run.py"))
