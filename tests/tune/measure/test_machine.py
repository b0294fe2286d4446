"""Which target a platform or the user's own words mean, and what is refused."""

import os
from dataclasses import replace

import pytest

from pruner.errors import PrunerError
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import host_cpu, make_platform
from tests.tune.targets import device_of
from tests.tune.targets import platform_of as made

AVX2 = {"kind": "llvm", "mcpu": "haswell"}

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("target", "cores"),
    [
        (AVX2 | {"num-cores": 3}, 3),
        ('{"kind": "llvm", "mcpu": "haswell", "num-cores": 3}', 3),
        (AVX2, os.cpu_count()),
        ("llvm", os.cpu_count()),
        ("host", os.cpu_count()),
    ],
)
def test_cores_are_those_of_the_target(target, cores):
    platform = made("cpu-avx512", target)
    assert (platform.device, platform.cores) == ("cpu", cores)
    assert int(platform.target.attrs["num-cores"]) == cores
    assert target != "host" or str(platform.target.attrs["mcpu"]) == host_cpu()


@pytest.mark.parametrize(
    ("platform", "processor", "cores"),
    [
        ("cpu-sse4", "nehalem", 1),
        ("cpu-avx2", "haswell", 2),
        ("cpu-avx512", "skylake-avx512", 2),
        ("cpu-epyc", "znver3", 2),
        ("cpu-zen5", "znver5", 2),
    ],
)
def test_a_described_cpu_is_compiled_for_the_processor_of_its_file(platform, processor, cores):
    attrs = made(platform, None).target.attrs
    assert (str(attrs["mcpu"]), int(attrs["num-cores"])) == (processor, cores)


def test_a_cpu_whose_file_names_no_processor_is_told_what_to_write():
    # of a run begun before the files named it
    device = replace(device_of("cpu-avx2"), architecture=None)
    assert str(make_platform(device).target.attrs["mcpu"]) == "haswell"
    device = replace(device, name="mine")
    with pytest.raises(PrunerError, match="give its file an architecture"):
        make_platform(device)


def test_what_a_cuda_target_leaves_open_is_the_platforms():
    attrs = made("a100", {"kind": "cuda", "arch": "sm_86"}).target.attrs
    assert int(attrs["max_shared_memory_per_block"]) == 163 * 1024  # with the opt-in
    assert int(made("h200", None).target.attrs["max_shared_memory_per_block"]) == 227 * 1024
    assert (made("a100", None).device, str(made("a100", None).target.attrs["arch"])) == (
        "cuda", "sm_80",
    )  # fmt: skip
    assert str(attrs["arch"]) == "sm_86"
    assert int(attrs["max_threads_per_block"]) == 1024


def test_what_an_opencl_target_leaves_open_is_the_platforms():
    for target in (None, "opencl", {"kind": "opencl"}):
        platform = made("mali-g78", target)
        attrs = platform.target.attrs
        assert platform.device == "opencl"
        assert int(attrs["max_num_threads"]) == int(attrs["max_threads_per_block"]) == 512
        assert int(attrs["max_shared_memory_per_block"]) == 32768
        assert int(attrs["thread_warp_size"]) == 1  # no barrier may be left out
    given = {"kind": "opencl", "max_shared_memory_per_block": 1024}
    assert int(made("mali-g78", given).target.attrs["max_shared_memory_per_block"]) == 1024
    assert str(made("opencl-pocl", None).target.attrs["model"]) == "pocl"


def test_an_opencl_device_is_measured_on_its_own_machine():
    address = RpcAddress(host="h", port=1, key="k")
    with pytest.raises(PrunerError, match="leave runner=rpc out"):
        made("rx7900", None, address=address)


@pytest.mark.parametrize(
    ("platform", "target", "told"),
    [
        ("cpu-avx2", "llvm -mcpu=haswell", "target={kind:llvm,mcpu:haswell"),
        ("cpu-avx2", '{"kind": ', "no JSON"),
        ("cpu-avx2", "llwm", "target=llwm"),
        ("cpu-avx2", {"mcpu": "haswell"}, "kind"),
        ("cpu-avx2", AVX2 | {"num-cores": 0}, "at least 1"),
        ("cpu-avx2", AVX2 | {"num-cores": "x"}, "num-cores"),
        ("cpu-avx2", "cuda", "kind cuda does not fit platform=cpu-avx2"),
        ("a100", "llvm", "kind llvm does not fit platform=a100"),
        ("mi50", "rocm", "kind rocm does not fit platform=mi50"),
        ("mi50", "cuda", "no CUDA device"),
        ("mi50", None, "no CUDA device"),
        ("opencl-pocl", "cuda", "kind cuda does not fit platform=opencl-pocl"),
        ("a100", "opencl", "kind opencl does not fit platform=a100"),
    ],
)
def test_a_target_that_cannot_work_is_one_line(platform, target, told):
    with pytest.raises(PrunerError, match=told) as found:
        made(platform, target)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("target", "told"), [("host", "name the device"), (AVX2, "num-cores")])
def test_a_remote_device_is_not_this_machine(target, told):
    address = RpcAddress(host="127.0.0.1", port=9190, key="board")
    with pytest.raises(PrunerError, match=told):
        made("cpu-avx2", target, address=address)
