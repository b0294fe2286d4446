"""CPU targets: what a machine lacks, and which are meant."""

import json

import numpy as np
import pytest

from pruner.program.device import load_device
from pruner.tune.measure import jobs, machine, targets
from pruner.tune.measure.numerics import inputs, load_reference
from pruner.tune.measure.targets import (
    CPU_TARGETS,
    hidden_vectors,
    missing_flags,
    reference_target,
    widest_processor,
)
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, operator
from tests.paths import CONF

TARGETS = {target.platform: target for target in CPU_TARGETS}


def test_flags_are_whole_words_of_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nflags\t\t: fpu avx avx2x sse4_2 fma\n\nprocessor : 1\nflags : avx2\n"
    )
    assert missing_flags(TARGETS["cpu-sse4"], cpuinfo) == []
    assert missing_flags(TARGETS["cpu-avx2"], cpuinfo) == ["avx2"]
    assert missing_flags(TARGETS["cpu-avx512"], cpuinfo) == list(TARGETS["cpu-avx512"].cpu_flags)


def test_a_machine_that_tells_nothing_lacks_everything(tmp_path):
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
    assert widest_processor(cpuinfo) == "haswell"
    cpuinfo.write_text("flags : sse2\n")
    assert widest_processor(cpuinfo) == "x86-64"
    assert hidden_vectors(features, tmp_path / "absent") == []  # as on Arm


@pytest.mark.tvm
def test_programs_of_the_named_host_run_here(monkeypatch):
    monkeypatch.setattr(targets, "_flags", lambda _: {"avx", "avx2", "fma", "f16c", "sse4_2"})
    host = machine.load_tvm().tvm.target.Target({"kind": "llvm", "mcpu": machine.host_cpu()})
    assert not machine._hidden(host)
    skylake = machine.make_platform(load_device(CONF / "platform" / "cpu-avx512.yaml"))
    assert machine.missing_device(skylake) == (
        "this machine lacks avx512bw, avx512cd, avx512dq of skylake-avx512"
    )


@pytest.mark.parametrize("target", CPU_TARGETS, ids=lambda target: target.platform)
def test_the_files_of_the_platforms_say_the_same(target):
    device = load_device(CONF / "platform" / f"{target.platform}.yaml")
    assert target.processor == device.architecture
    assert (target.cores, target.vector_bytes) == (device.num_cores, device.simd_bytes)


def test_references_of_halves_ask_for_their_conversion_where_it_is_there(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx f16c fma\n")
    assert reference_target(["float16"], cpuinfo) == {"kind": "llvm", "mattr": ["+f16c"]}
    assert reference_target(["float32", "int32"], cpuinfo) == {"kind": "llvm"}
    cpuinfo.write_text("flags : avx fma\n")
    assert reference_target(["float16"], cpuinfo) == {"kind": "llvm"}


@pytest.mark.tvm
def test_references_of_halves_round_every_step(tmp_path):
    """As NumPy's half precision does, which knows no instruction for it: the same bits."""
    matmul = operator("matmul", m=16, n=32, k=64, dtype="float16").module
    given, library, out = arguments(matmul), str(tmp_path / "r.so"), str(tmp_path / "r.npz")
    target = json.dumps(reference_target(dtype for _, dtype in given))
    jobs.build(load_tvm().tvm.ir.save_json(matmul), target, library, True)
    jobs.reference(library, given, out)
    for kind, found in load_reference(out).items():
        a, b, _ = inputs(given, kind=kind)
        wanted = np.zeros((16, 32), np.float16)
        for k in range(64):
            wanted += a[:, k, None] * b[None, k]
        np.testing.assert_array_equal(found[-1], wanted)
