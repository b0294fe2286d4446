"""Scripts of experiments/, which no package holds."""

import runpy

import pytest


@pytest.fixture
def script(repository):
    """The names that ``experiments/<item>/run.py`` defines."""
    return lambda item: runpy.run_path(str(repository / f"experiments/{item}/run.py"))
