"""Lines of progress of what takes minutes, past pytest's capture."""

import sys
import time
from collections.abc import Callable

import pytest


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Callable[[str], None]:
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n  {time.strftime('%H:%M:%S')} {request.node.name}: {line}")
            sys.stderr.flush()

    return say
