"""Workers that are wanted no more end at once, whatever they are doing."""

import os
import signal
import time

import pytest

from pruner.tune.measure.isolation import NO_WORKER, Limits, Pool

JOBS = "tests.tune.measure.napping"


@pytest.fixture
def pool():
    made = Pool(1, Limits(timeout_s=60, memory_bytes=1 << 30), {}, JOBS)
    yield made
    made.close()


def test_closing_waits_for_no_job(pool):
    assert pool.submit("nap", 0).result().value == 0
    at_work, waiting = pool.submit("nap", 50), pool.submit("nap", 50)
    while not at_work.running():
        time.sleep(0.01)
    time.sleep(0.3)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30
    assert at_work.result().error == NO_WORKER  # nobody is to blame
    assert waiting.cancelled()


def test_closing_waits_for_no_start(pool):
    pool.warm_up(wait=False)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30


def test_what_is_closed_starts_nothing(pool):
    (worker,) = pool._workers
    pool.close()
    assert worker.call("nap", 0).error == NO_WORKER
    assert worker._process is None


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, NO_WORKER)])
def test_a_worker_that_is_ended_while_it_starts_is_started_once_more(
    pool, monkeypatch, times, error
):
    (worker,) = pool._workers
    start, ended = worker._start, []

    def start_and_end():
        start()
        if len(ended) < times:
            ended.append(worker._process.pid)
            os.kill(ended[-1], signal.SIGKILL)

    monkeypatch.setattr(worker, "_start", start_and_end)
    reply = pool.submit("nap", 0).result()
    assert (reply.error, len(ended)) == (error, times)
    assert pool.submit("nap", 0).result().value == 0  # and the next job has a worker
