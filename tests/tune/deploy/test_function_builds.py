"""Functions compiled in several processes: the library computes the same."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.compiling import link
from pruner.tune.deploy import build
from pruner.tune.deploy.build import compiled
from pruner.tune.networks.request import NetworkRequest, lowered_network
from pruner.tune.networks.rewrites.operators import functions_of
from pruner.tune.networks.source import NetworkSource, inputs_of
from pruner.tune.tvm_import import load_tvm
from tests.tune.targets import platform_of, target_of

pytestmark = pytest.mark.tvm
NETWORK = "tests.tune.networks.small_networks:one_image"


@pytest.fixture(scope="module")
def lowered():
    """A platform, the source of a network, and its functions."""
    platform = platform_of("cpu-sse4")
    source = NetworkSource(name=NETWORK)
    request = NetworkRequest(source=source, target=json.loads(platform.target_json))
    return platform, source, lowered_network(request)[0]


def outputs_of(executable, lowered, path, objects=None):
    """What a network computes as a library."""
    platform, source, _ = lowered
    link(executable, platform.target, path, objects=objects)
    tvm = load_tvm().tvm
    main = load_tvm().relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    result = main(*map(tvm.runtime.tensor, inputs_of(source)))
    return [one.numpy() for one in ([result] if hasattr(result, "numpy") else result)]


@pytest.fixture(scope="module")
def wanted(lowered, tmp_path_factory):
    """What the network computes that one process compiled."""
    platform, _, module = lowered
    place = tmp_path_factory.mktemp("whole") / "whole.so"
    return outputs_of(compiled(module, platform.target), lowered, place)


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Functions that two processes compile."""
    monkeypatch.setattr(build, "_FEWEST", 2)
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: {0, 1})
    with closing(build.FunctionBuilds(target_of("llvm"), tmp_path)) as found:
        yield found


@pytest.mark.parametrize("ended", [False, True])
def test_two_processes_compute_what_one_does(ended, lowered, wanted, tmp_path, builds):
    platform, _, module = lowered
    builds._target = platform.target
    rest = compiled(module, platform.target, builds)
    assert len(functions_of(builds._taken[0])) == 1
    if ended:
        os.kill(builds._workers[0]._process.pid, signal.SIGKILL)
    found = outputs_of(rest, lowered, tmp_path / "together.so", builds.objects)
    assert [path.stat().st_size > 0 for path in tmp_path.glob("?.o")] == [True] * len(builds._taken)
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def four_functions():
    tvm = load_tvm().tvm
    a = tvm.te.placeholder((4,), name="a")
    function = tvm.te.create_prim_func([a, tvm.te.compute((4,), lambda i: a[i] + 1.0, name="b")])
    names = [f"add_{index}" for index in range(4)]
    return tvm.IRModule({name: function.with_attr("global_symbol", name) for name in names})


def test_a_build_goes_on_without_a_second_process(four_functions, builds, monkeypatch):
    failed = OSError(12, "Cannot allocate memory")
    monkeypatch.setattr(build.Worker, "start", Mock(side_effect=failed))
    rest = builds.take(four_functions)
    assert len(functions_of(rest)) == 1
    assert [path.name for path in map(Path, builds.objects())] == ["0.o", "1.o", "2.o"]


def test_a_function_of_a_killed_process_is_compiled(four_functions, builds, monkeypatch):
    monkeypatch.setattr(build.host_memory, "free_bytes", lambda: 0.0)  # this process is alone
    builds.take(four_functions)
    assert builds._workers == []
    builds._path(0).with_suffix(".taken").touch()
    assert all(Path(path).is_file() for path in builds.objects())


def test_few_functions_stay_together(four_functions, builds, monkeypatch):
    monkeypatch.setattr(build, "_FEWEST", 5)
    assert builds.take(four_functions).same_as(four_functions)
    assert builds.objects() == []


@pytest.mark.parametrize("first", [True, False])
def test_an_error_is_told_wherever_it_occurs(first, four_functions, builds, monkeypatch):
    """``first``: this process finds a function to compile, else the other process had them all."""

    def fail(_, number):
        raise RuntimeError(f"LLVM cannot {number}")

    monkeypatch.setattr(build.FunctionBuilds, "_compile", fail)
    builds.take(four_functions)
    if not first:
        for number in range(3):
            builds._path(number).with_suffix(".taken").touch()
    with pytest.raises(PrunerError, match="could not be built: LLVM cannot"):
        builds.objects()
