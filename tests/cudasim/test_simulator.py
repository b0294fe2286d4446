"""Programs of CUDA targets run on the simulated device: right, without a fault of memory."""

import json
import subprocess
import sys

import pytest

from tests.cudasim.simulator import environment, missing
from tests.paths import REPOSITORY

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


def programs(*words, order="random"):
    """What ``tests.cudasim.programs`` prints."""
    return printed_by("tests.cudasim.programs", *words, order=order)


def printed_by(module, *words, order="random"):
    """The JSON lines that a module prints, run with every check of the device."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=REPOSITORY, env=environment(check=True, order=order),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def on_tensor_cores():
    """Programs of the first case: one of wmma with all its barriers and without one, one of mma."""
    return programs("each=1", "only=mma", "case=0", "barriers=wmma")


def test_programs_on_tensor_cores_are_right(on_tensor_cores):
    found = [on_tensor_cores[0], *on_tensor_cores[2:]]
    assert [one["space"] for one in found] == ["wmma", "mma, copies ahead"]
    assert [one["error"] for one in found] == [None] * len(found)
    assert all(one["right"] for one in found)


def test_a_missing_barrier_is_noticed(on_tensor_cores):
    """Values of a program on tensor cores stay right without a barrier: the races tell."""
    whole, broken, *_ = on_tensor_cores
    assert (whole["without"], whole["right"], whole["error"]) == (None, True, None)
    assert broken["without"] == 0
    assert "races" in broken["error"]
    assert " 0 races" not in broken["error"]


def test_a_network_as_a_cuda_graph_follows_its_inputs():
    """A kernel of a graph reads its memory at the launch of the graph, not at the capture."""
    (found,) = printed_by("tests.cudasim.networks")
    assert (found["apart"]["captures"], found["graph"]["captures"] > 0) == (0, True)
    assert found["graph"]["outputs"] == found["apart"]["outputs"]
    assert found["graph"]["outputs"][0] != found["graph"]["outputs"][1]


@pytest.mark.slow
def test_programs_of_every_space_are_right():
    """Seven of every space of every case: float16 and float32 of a100, h100 and t4."""
    found = programs("each=7")
    assert len(found) >= 200
    kinds = {one["space"] for one in found}
    assert kinds == {"wmma", "mma, copies ahead", "lanes", "lanes, copies ahead"}
    assert [one for one in found if not one["right"]] == []
