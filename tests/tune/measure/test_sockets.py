"""What a killed process leaves among the temporary files goes with the next start."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import os, signal, sys
from pruner.tune.measure.isolation import Limits, Pool
from pruner.tune.measure.sockets import keep_sockets_together

keep_sockets_together()
limits = Limits(timeout_s=60, memory_bytes=1 << 30)
pool = Pool(1, limits, {}, "tests.tune.measure.napping")
assert pool.submit("nap", 0).result().value == 0
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
pool.close()
"""


def started(repository, folder, how):
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", PROGRAM, how]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_sockets_of_killed_processes_go(repository):
    with tempfile.TemporaryDirectory(prefix="sockets-") as place:  # their names are short
        folder = Path(place)
        assert started(repository, folder, "killed").returncode == -signal.SIGKILL
        (left,) = folder.iterdir()
        assert left.stat().st_mode & 0o777 == 0o700
        assert list(left.rglob("listener-*"))
        done = started(repository, folder, "ended")
        assert (done.returncode, done.stderr, list(folder.iterdir())) == (0, "", [])


def test_a_long_name_is_left_to_python(repository, tmp_path):
    folder = tmp_path / ("x" * 60)
    folder.mkdir()
    words = "from pruner.tune.measure.sockets import keep_sockets_together\n"
    words += "keep_sockets_together()\nimport tempfile; print(tempfile.gettempdir())"
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(repository)}
    command = [sys.executable, "-c", words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder)
    assert list(folder.iterdir()) == []
