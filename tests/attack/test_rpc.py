"""Trackers and devices on loopback that die or lie: one line, in time, and no program is blamed."""

import json
import os
import signal
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError
from tests.tune.measure.test_measurer import program
from tests.tune.measure.test_remote import free_port, tracked

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

MAGIC = struct.pack("<i", 0x2F271)
LIMIT_S = 6.0


def answers(*values):
    """Talks as a tracker does: one answer after the other, whatever is asked."""

    def talk(connection):
        connection.recv(4)
        connection.sendall(MAGIC)
        for value in values:
            size = struct.unpack("<i", connection.recv(4))[0]
            connection.recv(size)
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            connection.sendall(struct.pack("<i", len(text)) + text)
        time.sleep(30)

    return talk


def silent(connection):
    time.sleep(30)


def endless(connection):
    connection.sendall(MAGIC + struct.pack("<i", 2**31 - 1))
    while True:
        connection.sendall(b"\0" * (1 << 16))


HOSTILE = {
    "closes": lambda connection: None,
    "silent": silent,
    "noise": lambda connection: connection.sendall(os.urandom(1 << 16)),
    "another protocol": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "endless": endless,
    "negative size": lambda connection: connection.sendall(MAGIC + struct.pack("<i", -1)),
    "no json": answers(b"\xff{", b"\xff{"),
    "other json": answers([0, {"server_info": [7]}], [0, "x"]),
    "deep json": answers(b"[" * 100_000, b"[" * 100_000),
    "failure": answers([-1, "x"], [-1, "x"]),
}


@contextmanager
def listening(talk):
    """Port of a server that talks so with everybody."""

    def serve(connection):
        with connection, suppress(OSError, struct.error):
            talk(connection)

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("talk", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tracker_is_one_line_in_time(talk):
    from pruner.tune.measure.jobs import RpcAddress
    from pruner.tune.measure.machine import check_health

    with listening(talk) as port:
        start = time.monotonic()
        with pytest.raises(PrunerError) as told:
            check_health(RpcAddress(host="127.0.0.1", port=port, key="board"), LIMIT_S)
        assert "\n" not in str(told.value)
        assert time.monotonic() - start < 300  # it starts a process that imports TVM


@pytest.mark.parametrize("name", ["closes", "silent", "noise", "another protocol"])
def test_a_hostile_device_costs_no_program_anything(name, tmp_path):
    from pruner.processes import Worker, preload
    from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress, Timing

    library = tmp_path / "never.so"
    library.write_bytes(b"it is never sent")
    preload(*PRELOADED)
    worker = Worker(JOBS, timeout_s=25, memory_bytes=4 << 30)
    with (
        listening(HOSTILE[name]) as device,
        listening(answers(*[[0, ["127.0.0.1", device, "board"]]] * 9)) as port,
    ):
        address = RpcAddress(host="127.0.0.1", port=port, key="board")
        reply = worker.call("run", str(library), "cpu", [((4,), "float32")], Timing(), address)
    worker.stop()
    assert reply.error == "no_device", reply
    assert reply.seconds < 25 + 300  # it starts a process that imports TVM


@pytest.mark.parametrize("what", ["device", "tracker"])
def test_a_device_that_dies_while_it_measures_costs_no_program_anything(what, tmp_path):
    from pruner.tune.measure.jobs import RpcAddress, Timing
    from pruner.tune.measure.measurer import Candidate, DeviceMeasurer, MeasureSettings, Platform
    from pruner.tune.phases import Phases
    from pruner.tune.tvm_import import load_tvm
    from pruner.tune.workloads import arguments

    slow = program(tmp_path, "slow", 'T.evaluate(T.call_extern("int32", "usleep", 500000))')
    port, own = free_port(), free_port()
    with tracked(port, own) as processes:
        platform = Platform(
            target=load_tvm().tvm.target.Target("llvm"),
            device="cpu",
            address=RpcAddress(host="127.0.0.1", port=port, key="board"),
        )
        settings = MeasureSettings(
            timing=Timing(repeats=20, min_repeat_ms=1), builders=1, run_timeout_s=60
        )
        with DeviceMeasurer(platform, settings, Phases()) as measurer:
            candidate = Candidate(
                space=0, decisions=np.zeros(0, np.int64), schedule=SimpleNamespace(mod=slow)
            )
            batch = measurer.begin([candidate] * 2, arguments(slow))
            batch[0].built.result()
            time.sleep(2.5)  # it runs for ten seconds
            chosen = processes[1:] if what == "device" else processes
            for process in chosen:
                os.killpg(process.pid, signal.SIGKILL)
            outcomes = [o for _, o in measurer.results(batch, lambda *_: True, None)]
    assert [o.error for o in outcomes] == ["run_no_device"] * 2
    assert not any(o.concerns_program for o in outcomes)
