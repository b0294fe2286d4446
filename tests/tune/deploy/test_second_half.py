"""Half of the functions compiled in another process: the library computes the same."""

import json
import os
import signal

import numpy as np
import pytest

from pruner.paths import conf_folder
from pruner.program.device import load_device

pytestmark = pytest.mark.tvm
NETWORK = "tests.tune.networks.small_networks:one_image"


@pytest.mark.parametrize("ended", [False, True])
def test_a_library_of_two_halves_computes_what_a_whole_one_does(ended, tmp_path, monkeypatch):
    from pruner.tune.compiling import link
    from pruner.tune.deploy import second_half
    from pruner.tune.deploy.build import compiled
    from pruner.tune.measure.machine import make_platform
    from pruner.tune.networks.request import NetworkRequest, lowered_network
    from pruner.tune.networks.source import NetworkSource, inputs_of
    from pruner.tune.tvm_import import load_tvm

    monkeypatch.setattr(second_half, "_FEWEST", 2)
    monkeypatch.setattr(second_half.os, "sched_getaffinity", lambda _: {0, 1})
    platform = make_platform(load_device(conf_folder() / "platform" / "cpu-sse4.yaml"))
    source, target = NetworkSource(name=NETWORK), platform.target
    request = NetworkRequest(source=source, target=json.loads(platform.target_json))
    module, *_ = lowered_network(request)
    whole = compiled(module, target)
    half = second_half.SecondHalf(target, tmp_path / "half.o")
    rest = compiled(module, target, half)
    if ended:
        os.kill(half._worker._process.pid, signal.SIGKILL)
    tvm, outputs = load_tvm().tvm, []
    for executable, objects in ((whole, None), (rest, half.objects)):
        path = tmp_path / f"{len(outputs)}.so"
        link(executable, target, path, objects=objects)
        library = tvm.runtime.load_module(str(path))
        main = load_tvm().relax.VirtualMachine(library, tvm.cpu())["main"]
        result = main(*map(tvm.runtime.tensor, inputs_of(source)))
        outputs.append([one.numpy() for one in ([result] if hasattr(result, "numpy") else result)])
    half.close()
    assert (tmp_path / "half.o").stat().st_size > 0
    for one, two in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, two)
