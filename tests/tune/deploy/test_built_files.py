"""What is built of a run has one builder at a time; the run itself may go on meanwhile."""

import subprocess
import sys

import pytest

from pruner.errors import PrunerError
from pruner.files import held
from pruner.tune.deploy.built_files import WORK, deploying, remove_built


def test_two_do_not_build_at_once(tmp_path):
    words = "import pathlib, sys; from pruner.tune.deploy.built_files import deploying\n"
    words += "with deploying(pathlib.Path(sys.argv[1])):\n    print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", words, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(PrunerError, match=f"{WORK}: process {other.pid} .* works in it"):
            deploying(tmp_path).__enter__()
        with held(tmp_path):  # as tune.py does
            pass
        other.stdin.close()
    with deploying(tmp_path), deploying(tmp_path):  # tune.py's last step is this process's own
        pass


def test_a_build_begins_without_the_library_and_all_that_was_found_of_it(tmp_path):
    gone = {"network.so", "deploy.json", "beside.json", "report.html"}
    for name in (*gone, "metrics.json", "run_network.py"):
        (tmp_path / name).touch()
    remove_built(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "run_network.py"}
    remove_built(tmp_path)  # where nothing is left
