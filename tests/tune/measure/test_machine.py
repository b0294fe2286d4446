"""Which target a platform, a processor or the user's words mean, and what is refused."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.measure import jobs, machine, targets
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import host_cpu, make_platform
from pruner.tune.measure.numerics import inputs, load_reference
from pruner.tune.measure.targets import CPU_TARGETS, hidden_vectors, missing_flags
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, operator
from tests.tune.targets import device_of, target_of
from tests.tune.targets import platform_of as made

AVX2 = {"kind": "llvm", "mcpu": "haswell"}


@pytest.mark.tvm
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


@pytest.mark.tvm
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


@pytest.mark.tvm
def test_a_cpu_whose_file_names_no_processor_is_told_what_to_write():
    # of a run begun before the files named it
    device = replace(device_of("cpu-avx2"), architecture=None)
    assert str(make_platform(device).target.attrs["mcpu"]) == "haswell"
    device = replace(device, name="mine")
    with pytest.raises(PrunerError, match="give its file an architecture"):
        make_platform(device)


@pytest.mark.tvm
def test_what_a_cuda_target_leaves_open_is_the_platforms():
    attrs = made("a100", {"kind": "cuda", "arch": "sm_86"}).target.attrs
    assert int(attrs["max_shared_memory_per_block"]) == 163 * 1024  # with the opt-in
    assert int(made("h200", None).target.attrs["max_shared_memory_per_block"]) == 227 * 1024
    a100 = made("a100", None)
    assert (a100.device, str(a100.target.attrs["arch"])) == ("cuda", "sm_80")
    assert str(attrs["arch"]) == "sm_86"
    assert int(attrs["max_threads_per_block"]) == 1024


@pytest.mark.tvm
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


@pytest.mark.tvm
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


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("platform", "target", "told"),
    [
        ("cpu-avx2", "host", "name the device"),
        ("cpu-avx2", AVX2, "num-cores"),
        ("rx7900", None, "leave runner=rpc out"),
    ],
)
def test_a_remote_device_is_not_this_machine(platform, target, told):
    address = RpcAddress(host="127.0.0.1", port=9190, key="board")
    with pytest.raises(PrunerError, match=told):
        made(platform, target, address=address)


TARGETS = {target.platform: target for target in CPU_TARGETS}


def test_flags_are_whole_words_of_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nflags\t\t: fpu avx avx2x sse4_2 fma\n\nprocessor : 1\nflags : avx2\n"
    )
    assert missing_flags(TARGETS["cpu-sse4"], cpuinfo) == []
    assert missing_flags(TARGETS["cpu-avx2"], cpuinfo) == ["avx2"]
    assert missing_flags(TARGETS["cpu-avx512"], cpuinfo) == list(TARGETS["cpu-avx512"].cpu_flags)
    # a machine that tells nothing lacks everything
    assert missing_flags(TARGETS["cpu-avx2"], tmp_path / "absent") == ["avx2", "fma"]
    (tmp_path / "arm").write_text("Features : neon\n")
    assert missing_flags(TARGETS["cpu-avx2"], tmp_path / "arm") == ["avx2", "fma"]


def test_a_virtual_machine_may_hide_instructions_of_its_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    features = ["avx2", "avx512f", "avx512vl", "avxifma", "amx-fp16", "fma", "64bit", "bmi"]
    cpuinfo.write_text("flags : avx2 fma avx512f avx512vl\n")
    assert hidden_vectors(features, cpuinfo) == []  # Linux never lists amx-fp16 and avxifma
    cpuinfo.write_text("flags : avx2 fma\n")
    assert hidden_vectors(features, cpuinfo) == ["avx512f", "avx512vl"]
    assert targets.widest_processor(cpuinfo) == "haswell"
    cpuinfo.write_text("flags : sse2\n")
    assert targets.widest_processor(cpuinfo) == "x86-64"
    assert hidden_vectors(features, tmp_path / "absent") == []  # as on Arm


@pytest.mark.tvm
def test_programs_of_the_named_host_run_here(monkeypatch):
    monkeypatch.setattr(targets, "_flags", lambda _: {"avx", "avx2", "fma", "f16c", "sse4_2"})
    assert not machine._hidden(target_of({"kind": "llvm", "mcpu": host_cpu()}))
    assert machine.missing_device(made("cpu-avx512")) == (
        "this machine lacks avx512bw, avx512cd, avx512dq of skylake-avx512"
    )


@pytest.mark.parametrize("target", CPU_TARGETS, ids=lambda target: target.platform)
def test_the_files_of_the_platforms_say_the_same(target):
    device = device_of(target.platform)
    assert target.processor == device.architecture
    assert (target.cores, target.vector_bytes) == (device.num_cores, device.simd_bytes)


def test_references_of_halves_ask_for_their_conversion_where_it_is_there(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx f16c fma\n")
    assert targets.reference_target(["float16"], cpuinfo) == {"kind": "llvm", "mattr": ["+f16c"]}
    assert targets.reference_target(["float32", "int32"], cpuinfo) == {"kind": "llvm"}
    cpuinfo.write_text("flags : avx fma\n")
    assert targets.reference_target(["float16"], cpuinfo) == {"kind": "llvm"}


@pytest.mark.tvm
def test_references_of_halves_round_every_step(tmp_path):
    """As NumPy's half precision does, which knows no instruction for it: the same bits."""
    matmul = operator("matmul", m=16, n=32, k=64, dtype="float16").module
    given, library, out = arguments(matmul), str(tmp_path / "r.so"), str(tmp_path / "r.npz")
    target = json.dumps(targets.reference_target(dtype for _, dtype in given))
    jobs.build(load_tvm().tvm.ir.save_json(matmul), target, library, True)
    jobs.reference(library, given, out)
    for kind, found in load_reference(out).items():
        a, b, _ = inputs(given, kind=kind)
        wanted = np.zeros((16, 32), np.float16)
        for k in range(64):
            wanted += a[:, k, None] * b[None, k]
        np.testing.assert_array_equal(found[-1], wanted)
