"""A folder that another process works in."""

import subprocess
import sys
from contextlib import contextmanager

from tests.paths import REPOSITORY
from tests.test_files import HOLD


@contextmanager
def held_elsewhere(folder):
    """The process that holds it."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"held\n"
            yield other
        finally:
            other.kill()
