"""Which described device a target of TVM is drafted for."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.metaschedule.session import platform_of
from pruner.tune.tvm_import import load_tvm

pytestmark = pytest.mark.tvm


def found(target, name=None):
    told = []
    platform = platform_of(load_tvm().tvm.target.Target(target), name, told.append)
    return platform, told


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"kind": "llvm", "mcpu": "nehalem"}, "cpu-sse4"),
        ({"kind": "llvm", "mcpu": "haswell"}, "cpu-avx2"),
        ({"kind": "llvm", "mcpu": "znver3"}, "cpu-avx2"),
        ({"kind": "llvm", "mcpu": "sapphirerapids"}, "cpu-avx512"),
        ("nvidia/jetson-agx-orin-64gb", "orin"),
        ({"kind": "cuda", "arch": "sm_75"}, "t4"),
    ],
)
def test_a_device_is_found_by_its_instructions_or_architecture(target, name):
    platform, told = found(target)
    assert (platform.name, told) == (name, [])


def test_cores_are_those_of_the_target():
    platform, _ = found({"kind": "llvm", "mcpu": "haswell", "num-cores": 12})
    assert (platform.device, platform.cores) == ("cpu", 12)


def test_a_choice_is_told_and_can_be_made():
    platform, (line,) = found("nvidia/nvidia-h100")  # its architecture is sm_90a
    assert platform.name == "h100"
    assert "h100, h200" in line
    assert found("nvidia/nvidia-h100", "h200")[0].name == "h200"


def test_code_for_any_processor_is_told():
    platform, (line,) = found({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    assert platform.name == "cpu-sse4"
    assert "mcpu" in line


@pytest.mark.parametrize(
    ("target", "name", "says"),
    [
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, None, "platform= one of cpu-avx2"),
        ({"kind": "llvm", "mcpu": "haswell"}, "a100", "platform=a100 describes no such device"),
        ({"kind": "cuda", "arch": "sm_120"}, None, "platform= one of a100"),
        ({"kind": "hexagon", "mcpu": "hexagonv68"}, None, "TVM's own strategy"),
    ],
)
def test_what_is_not_described_is_refused(target, name, says):
    with pytest.raises(PrunerError, match=says):
        found(target, name)
