"""Which described device a target of TVM is drafted for."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.metaschedule.session import platform_of
from tests.tune.targets import target_of

pytestmark = pytest.mark.tvm


def found(target, name=None):
    told = []
    platform = platform_of(target_of(target), name, told.append)
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


@pytest.mark.parametrize(
    ("target", "name", "told"),
    [
        ("nvidia/nvidia-h100", "h100", "h100, h200"),  # its architecture is sm_90a
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, "cpu-sse4", "mcpu"),  # any processor
    ],
)
def test_a_choice_is_told(target, name, told):
    platform, (line,) = found(target)
    assert platform.name == name
    assert told in line


def test_a_choice_can_be_made():
    assert found("nvidia/nvidia-h100", "h200")[0].name == "h200"


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
