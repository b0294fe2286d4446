"""Half of the functions compiled in another process: the library computes the same."""

import json
import os
import signal
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.compiling import link
from pruner.tune.deploy import build
from pruner.tune.deploy.build import compiled
from pruner.tune.networks.request import NetworkRequest, lowered_network
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


@pytest.mark.parametrize("ended", [False, True])
def test_two_halves_compute_what_a_whole_does(ended, lowered, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_FEWEST", 2)
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: {0, 1})
    platform, _, module = lowered
    half = build.SecondHalf(platform.target, tmp_path / "half.o")
    rest = compiled(module, platform.target, half)
    if ended:
        os.kill(half._worker._process.pid, signal.SIGKILL)
    found = outputs_of(rest, lowered, tmp_path / "halves.so", half.objects)
    half.close()
    assert (tmp_path / "half.o").stat().st_size > 0
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture
def four_functions():
    tvm = load_tvm().tvm
    a = tvm.te.placeholder((4,), name="a")
    function = tvm.te.create_prim_func([a, tvm.te.compute((4,), lambda i: a[i] + 1.0, name="b")])
    names = [f"add_{index}" for index in range(4)]
    return tvm.IRModule({name: function.with_attr("global_symbol", name) for name in names})


def test_a_build_goes_on_without_a_second_process(four_functions, tmp_path, monkeypatch):
    failed = OSError(12, "Cannot allocate memory")
    monkeypatch.setattr(build.Worker, "start", Mock(side_effect=failed))
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: {0, 1})
    half = build.SecondHalf(target_of("llvm"), tmp_path / "half.o")
    assert half.take(four_functions).same_as(four_functions)
    assert half.objects() == []
    half.close()


def test_errors_of_both_processes_are_told(four_functions, tmp_path, monkeypatch, caplog):
    def compile_(_):
        raise RuntimeError("LLVM cannot")

    monkeypatch.setattr(build.SecondHalf, "compile", compile_)
    monkeypatch.setattr(compile_, "__name__", "compile", raising=False)
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: {0, 1})
    half = build.SecondHalf(target_of("llvm"), tmp_path / "half.o")
    half.take(four_functions)
    with pytest.raises(PrunerError, match="could not be built: LLVM cannot"):
        half.objects()
    half.close()
    assert "the second process failed (RuntimeError: LLVM cannot" in caplog.text
