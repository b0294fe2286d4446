"""Processes that tests start: Python with this checkout, and commands of the project."""

import json
import os
import subprocess
import sys

from experiments.common.comparison import started
from tests.paths import REPOSITORY


def python(*words, cwd=REPOSITORY, timeout=None, bare=False, **environment):
    """How a Python that sees this checkout ended; ``bare``: with the given environment alone.

    A script (``FILE.py``) gets no PYTHONPATH: it and its processes must find their checkout.
    """
    inherited = {} if bare else os.environ
    place = {} if str(words[0]).endswith(".py") else {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**inherited, **place, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def ran(*words, **more):
    """The JSON of a command that succeeded, and its stderr."""
    done = python(*started(words, REPOSITORY)[1:], **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
