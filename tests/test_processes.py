"""Work in other processes: what it returns, what a crash costs, and that nothing outlives us."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pruner.errors import PrunerError
from pruner.processes import in_workers
from tests.places import REPOSITORY

# Functions over jobs in worker processes.


def double(number):
    """A job of a spawned worker."""
    return 2 * number


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_job_is_done_once_in_one_of_the_workers(method):
    with in_workers([1, 2, 3], double, 2, method=method) as ended:
        assert sorted(done.get() for done in ended()) == [2, 4, 6]


def test_forked_workers_share_what_was_read_and_run_while_the_body_goes_on(tmp_path):
    parent, read = os.getpid(), {"a": 1}

    def job(name):
        (tmp_path / name).touch()
        return os.getpid() != parent, read[name]

    with in_workers(["a"], job, 1) as ended:
        while not (tmp_path / "a").exists():
            time.sleep(0.01)
        assert [done.get() for done in ended()] == [(True, 1)]


def test_a_mistake_is_one_line_and_the_next_job_follows():
    def job(number):
        if number == 0:
            raise PrunerError("no 0")
        return number

    told = []
    with in_workers([0, 1], job, 1, tell=told.append) as ended:
        wrong, right = ended()
    assert (str(wrong.error), right.get(), told) == ("no 0", 1, ["error: no 0"])
    with pytest.raises(PrunerError, match="no 0"):
        wrong.get()


def test_a_worker_that_is_killed_costs_its_own_job():
    def job(number):
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)  # so that the other worker is there
        return number

    with in_workers([0, 1, 2], job, 2) as ended:
        done = list(ended())
    assert sorted(one.value for one in done if one.error is None) == [1, 2]
    assert [str(one.error)[:27] for one in done if one.error] == ["a worker process was ended,"]


def test_leaving_the_body_ends_the_workers_and_waiting_has_a_limit():
    def deaf(_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    start = time.monotonic()
    with in_workers([0], deaf, 1) as ended:
        assert list(ended(0.1)) == []
    assert time.monotonic() - start < 30


def test_a_process_with_several_threads_is_not_forked():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(2)
    with pytest.raises(PrunerError, match="need num_threads=1"), in_workers(["a"], print, 2):
        pass


# The end of the parent.

_WORKER = """
import multiprocessing, os, sys, time
from pathlib import Path

def work(ready, outlived):
    parent = os.getppid()
    Path(ready).touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    from pruner.processes import end_with_parent
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
