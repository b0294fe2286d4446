"""Devices that measure at the same time: how many, who sees which, what a lost one costs."""

import os
import signal
import time
from dataclasses import replace

import pytest

from pruner.errors import PrunerError
from pruner.tune.measure import jobs, machine
from pruner.tune.measure.jobs import RpcAddress, Timing
from pruner.tune.measure.machine import visible_gpus, with_devices
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Platform
from pruner.tune.phases import Phases
from pruner.tune.workloads import arguments
from tests.tune.measure.test_measurer import candidate, program
from tests.tune.measure.test_remote import free_port, serve, tracked, until
from tests.tune.targets import target_of

BOARD = RpcAddress(host="127.0.0.1", port=9190, key="board")
GPU = Platform(target=None, device="cuda")


def test_every_runner_sees_a_gpu_of_its_own_of_those_of_the_environment(monkeypatch):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-a"}) == ["2", "GPU-a"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    listed = ["GPU 0: NVIDIA H200 (UUID: GPU-x)", "  MIG 1g", "GPU 1: NVIDIA H200 (UUID: GPU-y)"]
    monkeypatch.setattr(machine, "nvidia_smi", lambda _: listed)
    assert visible_gpus({}) == ["0", "1"]
    monkeypatch.setattr(machine, "visible_gpus", lambda: ["4", "7", "9"])
    assert with_devices(GPU, 1, 3).environments == ({},)  # as ever
    assert [p["CUDA_VISIBLE_DEVICES"] for p in with_devices(GPU, 2, 3).environments] == ["4", "7"]
    assert len(with_devices(GPU, None, 3).environments) == 3


def test_of_a_tracker_all_servers_or_so_many_but_no_more_than_there_are():
    board = replace(GPU, address=BOARD)
    found = with_devices(board, None, 3)
    assert (len(found.environments), found.address.devices) == (3, 3)
    assert len(with_devices(board, 2, 3).environments) == 2
    with pytest.raises(PrunerError, match=r"measure.devices=4: there are 3"):
        with_devices(GPU, 4, 3)
    with pytest.raises(PrunerError, match="this machine's CPU is one device"):
        with_devices(Platform(target=None, device="cpu"), 2, 1)
    assert with_devices(Platform(target=None, device="cpu"), None, 1).environments == ({},)


@pytest.mark.tvm
@pytest.mark.slow
def test_three_servers_measure_at_once_in_order_and_one_may_die(tmp_path):
    # three tenths of a second a run, four runs (one is not counted)
    slow = program(tmp_path, "slow", 'T.evaluate(T.call_extern("int32", "usleep", 300000))')
    wrong = program(tmp_path, "wrong", 'T.evaluate(T.call_extern("int32", "abort"))')
    settings = MeasureSettings(timing=Timing(repeats=3, min_repeat_ms=1), run_timeout_s=60)

    def measured(platform, modules, disturb=lambda: None):
        with DeviceMeasurer(platform, settings, Phases()) as measurer:
            batch = measurer.begin([candidate(module) for module in modules], arguments(slow))
            for job in batch:
                job.built.result()
            start = time.monotonic()
            disturb()
            found = list(measurer.results(batch, lambda *_: True, None))
            return [o.error for _, o in found], [n for n, _ in found], time.monotonic() - start

    port = free_port()
    address = replace(BOARD, port=port)
    with tracked(port, free_port()) as started:
        started += [serve(free_port(), port) for _ in range(2)]
        until(lambda: jobs.servers(address).get("board") == 3, "no three servers at the tracker")
        board = Platform(target=target_of("llvm"), device="cpu", address=address)
        many = [slow] * 9
        _, _, alone_s = measured(with_devices(board, 1, 3), many)
        errors, order, together_s = measured(with_devices(board, None, 3), many)
        assert errors == [None] * 9
        assert order == list(range(9))
        assert together_s < 0.6 * alone_s

        def kill():
            time.sleep(1.0)  # all three are at work
            os.killpg(started[1].pid, signal.SIGKILL)

        errors, order, _ = measured(with_devices(board, None, 3), many, kill)
        assert sorted(errors, key=str) == [None] * 8 + ["run_no_device"]  # who was on it
        assert order == list(range(9))
        # a program that crashes takes its server along, and no more than that
        errors, _, _ = measured(with_devices(board, None, 2), [slow, wrong, slow, slow])
        assert errors[0] is errors[2] is errors[3] is None
        assert errors[1] in ("run_no_device", "run_error")
