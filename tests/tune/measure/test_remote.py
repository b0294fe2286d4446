"""A real tracker and a real server on loopback; and what is told where they are missing."""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from pruner.errors import PrunerError
from pruner.processes import NO_DEVICE, Worker, end_with_parent, preload
from pruner.tune.measure import jobs
from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress, Timing
from pruner.tune.measure.machine import check_health
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Platform
from pruner.tune.phases import Phases
from pruner.tune.workloads import arguments, from_operator
from tests.tune.measure.test_measurer import candidate
from tests.tune.targets import target_of

# In groups of their own; a test that is killed leaves none of them.
OWN = {
    "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True,
    "preexec_fn": end_with_parent,
}  # fmt: skip
pytestmark = [pytest.mark.tvm, pytest.mark.slow]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def at(port, key="board"):
    return RpcAddress(host="127.0.0.1", port=port, key=key)


def ports(port):
    return ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]


def until(holds, told):
    for _ in range(300):
        with contextlib.suppress(OSError):
            if holds():
                return
        time.sleep(0.2)
    raise TimeoutError(told)


def serve(own, port):
    """A server of the key ``board`` at `own`, known to the tracker at `port`."""
    words = [*ports(own), "--key", "board", "--tracker", f"127.0.0.1:{port}"]
    return subprocess.Popen([sys.executable, "-m", "tvm.exec.rpc_server", *words], **OWN)


def answers(port):
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


@contextlib.contextmanager
def tracked(port, own):
    """A tracker at `port` with one server at `own`, both in groups of their own."""
    words = [sys.executable, "-m", "tvm.exec.rpc_tracker", *ports(port)]
    started = [subprocess.Popen(words, **OWN)]
    try:
        until(lambda: answers(port), port)
        started.append(serve(own, port))
        until(lambda: jobs.servers(at(port)), "no server at the tracker")
        yield started
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


@pytest.fixture(scope="module")
def tracker():
    """Port of a tracker with one server of the key ``board``."""
    port = free_port()
    with tracked(port, free_port()):
        yield port


def test_programs_run_and_are_checked_there(tracker, tmp_path):
    workload = from_operator({"operator": "matmul", "m": 32, "n": 32, "k": 32})
    platform = Platform(target=target_of("llvm"), device="cpu", address=at(tracker))
    settings = MeasureSettings(timing=Timing(repeats=2, min_repeat_ms=1), builders=1)
    shapes, path = arguments(workload.module), tmp_path / "reference.npz"
    with DeviceMeasurer(platform, settings, Phases()) as measurer:
        assert not measurer.exclusive
        assert measurer.begin_reference(workload.module, shapes, path).result() is None
        batch = measurer.begin([candidate(workload.module)] * 3, shapes)
        outcomes = [o for _, o in measurer.results(batch, lambda *_: True, path)]
    assert [o.error for o in outcomes] == [None] * 3
    assert all(len(o.costs_s) == 2 for o in outcomes)


def test_the_device_answers_and_a_missing_tracker_or_key_is_one_line(tracker):
    with pytest.raises(PrunerError, match="no tracker there"):
        check_health(at(free_port()), 5)
    with pytest.raises(PrunerError, match="no device of this key at the tracker; known: board"):
        check_health(at(tracker, "phone"), 20)
    assert check_health(at(tracker), 20)["servers"] == 1


def test_a_device_that_is_taken_times_out(tracker):
    rpc = importlib.import_module("tvm.rpc")
    held = rpc.connect_tracker("127.0.0.1", tracker).request("board")
    try:
        with pytest.raises(PrunerError, match="no free device that answers in 4 s"):
            check_health(at(tracker), 4)
    finally:
        del held


@pytest.mark.parametrize("gone", ["tracker", "key"])
def test_a_device_that_is_lost_is_not_the_programs_fault(tracker, gone):
    """TVM's client would wait longer than a job may take."""
    preload(*PRELOADED)
    port, key = (tracker, "phone") if gone == "key" else (free_port(), "board")
    worker = Worker(JOBS, timeout_s=20, memory_bytes=4 << 30)
    reply = worker.call("health", at(port, key))
    worker.stop()
    assert reply.error == NO_DEVICE
    assert f"no device of the key {key} was free within 10 s" in reply.message
