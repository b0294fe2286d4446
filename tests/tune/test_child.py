"""A child does one job after another; what is wrong comes back in one line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pruner.errors import PrunerError
from pruner.tune.child import Child
from tests.places import REPOSITORY


def test_a_child_remembers_and_its_mistakes_are_one_line(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    with Child("tests.tune.jobs_of_a_child") as child:
        child.ask("count", out, log)
        child.ask("count", out, log)
        assert out.read_text() == "2"
        with pytest.raises(PrunerError, match=f"^out is wrong; {log} has the whole output$"):
            child.ask("refuse", out, log)
        child.ask("count", out, log)  # it goes on
        assert out.read_text() == "3"
        with pytest.raises(PrunerError, match=f"^exit 7; {log} has"):
            child.ask("die", out, log)
        assert "last words" in log.read_text()
        with pytest.raises(PrunerError, match=r"^exit 7"):
            child.ask("count", out, log)


def test_a_child_that_does_not_start_says_why(tmp_path):
    log = tmp_path / "log"
    with (
        Child("tests.tune.no_such_module") as child,
        pytest.raises(PrunerError, match=f"^exit 1; {log} has the whole output$"),
    ):
        child.ask("count", tmp_path / "out", log)
    assert "No module named tests.tune.no_such_module" in log.read_text()


_WORKER = """
import multiprocessing, os, sys, time
from pathlib import Path

def work(ready, outlived):
    parent = os.getppid()
    Path(ready).touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    from pruner.tune.child import end_with_parent
    end_with_parent()
    Path(outlived).touch()

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work, args=sys.argv[1:])
    worker.start()
    print(worker.pid, flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def test_a_worker_whose_parent_is_gone_before_it_asks_ends_at_once(tmp_path):
    """No signal comes then: workers of a featurize.py that was killed while they started stayed."""
    script, ready, outlived = tmp_path / "main.py", tmp_path / "ready", tmp_path / "outlived"
    script.write_text(_WORKER)
    words = [sys.executable, str(script), str(ready), str(outlived)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=60, cwd=REPOSITORY)
    worker, end = Path(f"/proc/{int(done.stdout)}"), time.monotonic() + 30
    while worker.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert ready.exists()
    assert not worker.exists()
    assert not outlived.exists()
