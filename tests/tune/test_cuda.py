"""CUDA programs are compiled to machine code where there is no driver, and their mistakes found."""

import ast
import os
import shutil
import subprocess
import sys

import pytest

from pruner.errors import PrunerError
from pruner.processes import Worker, preload
from pruner.tune import operator
from pruner.tune.compiling import compiled, link
from pruner.tune.cuda import runtime_error
from pruner.tune.kinds import lost_device
from pruner.tune.measure import machine
from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress, build
from pruner.tune.measure.measurer import Platform
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_file
from tests.tune.cuda_programs import UNKNOWN, programs
from tests.tune.targets import platform_of, target_of

pytestmark = pytest.mark.tvm
FATBIN = b"\x50\xed\x55\xba"  # the first bytes of what nvcc --fatbin makes, as fatbinary.h has it


@pytest.fixture
def built(tmp_path):
    """Builds a program of the above in a worker, as measuring does; its reply and library."""
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA compiler (nvcc) on this machine")
    path, library = tmp_path / "programs.py", tmp_path / "built.so"
    path.write_text(programs(UNKNOWN))
    target = platform_of("h200").target
    preload(*PRELOADED)
    worker = Worker(JOBS, timeout_s=60, memory_bytes=8 << 30)

    def build(name):
        module = load_tvm().tvm.ir.save_json(from_file(path, name)[0].module)
        return worker.call("build", module, str(target), str(library)), library

    yield build
    worker.stop()


def test_what_is_built_is_machine_code_and_what_nvcc_refuses_is_not_built(built):
    reply, library = built("good")
    assert reply.error is None, reply
    assert FATBIN in library.read_bytes()
    assert b"__global__" not in library.read_bytes()  # no source that would be compiled later
    reply, _ = built("bad")
    assert reply.error == "error"
    assert "no_such_function" in reply.message


def test_a_runtime_that_cannot_be_loaded_says_what_is_missing():
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("there is a driver")
    told = runtime_error()
    assert told.startswith("TVM cannot load its CUDA runtime (libcuda.so.1: cannot open shared")
    assert told.endswith("LD_LIBRARY_PATH=the folder of libcuda.so.1")


ASKS = """
import sys
from pathlib import Path
sys.modules["torch"] = None  # TVM would import it
from experiments.gpu.cuda_paths import cuda, cuda_environment
cuda.INSTALLED = Path(sys.argv[1])
print(cuda_environment())
"""


def test_what_cuda_needs_is_found_where_the_path_does_not_say(tmp_path):
    """An empty driver, as the loader would find it; in a process of its own, which it spoils."""
    cc = shutil.which("cc")
    if cc is None or shutil.which("nvidia-smi") is not None:
        pytest.skip("there is a driver, or no C compiler")
    lib, tools = tmp_path / "nvidia" / "lib64", tmp_path / "cuda-13.0" / "bin"
    lib.mkdir(parents=True)
    tools.mkdir(parents=True)
    driver = lib / "libcuda.so.1"
    made = ["-shared", f"-Wl,-soname,{driver.name}", "-o", driver, "-x", "c", os.devnull]
    subprocess.run([cc, *made], check=True)
    (tools / "nvcc").touch()

    def asked(**environment):
        told = subprocess.run(
            [sys.executable, "-c", ASKS, tmp_path],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PRUNER_TVM_CPUS_ONLY": "1", **environment},
        )  # fmt: skip
        return ast.literal_eval(told.stdout)

    assert asked(PATH="/nowhere", LD_LIBRARY_PATH="") == {
        "PATH": f"{tools}:/nowhere", "LD_LIBRARY_PATH": str(lib),
    }  # fmt: skip
    assert "PATH" not in asked() or shutil.which("nvcc") is None


def test_a_gpu_that_tvm_cannot_use_is_told_before_anything_runs(monkeypatch):
    listed = ["GPU 0: NVIDIA H200 (UUID: GPU-x)"]
    monkeypatch.setattr(machine, "nvidia_smi", lambda _: listed)
    monkeypatch.setattr(machine, "runtime_error", lambda: "why")
    address = RpcAddress(host="there", port=1, key="k")
    assert machine.missing_device(Platform(target=None, device="cuda")) == "why"
    assert machine.missing_device(Platform(target=None, device="cpu", address=address)) is None


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("host", None),
        ({"kind": "llvm", "mcpu": "haswell", "num-cores": 1}, None),
        ({"kind": "llvm", "mcpu": "cortex-a72"}, "no cortex-a72"),
        (
            {"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"},
            "no aarch64-linux-gnu",
        ),
    ],
)
def test_a_processor_that_is_not_this_machines_is_told_before_anything_runs(target, told):
    reason = machine.missing_device(platform_of("cpu-avx2", target))
    assert reason is None if told is None else reason.endswith(told)


def test_linking_for_another_processor_names_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr("pruner.tune.compiling.shutil.which", lambda _: None)
    tvm, module = load_tvm().tvm, operator("matmul", m=4, n=4, k=4).module
    target = target_of({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    with pytest.raises(
        PrunerError, match=r"needs aarch64-linux-gnu-g\+\+, which is not on the PATH"
    ):
        link(compiled(module, target), target, tmp_path / "f.so")
    # a run that only compiles needs no linker
    path = tmp_path / "program"
    build(tvm.ir.save_json(module), str(target), str(path))
    assert path.stat().st_size > 0


def test_a_process_without_a_device_is_no_fault_of_its_program():
    """CUDA's message is that of TVM 0.27 on an H200, in a worker forked from a user of it."""
    seen = "CUDA Runtime Error: cudaErrorInitializationError (3): initialization error"
    assert lost_device(RuntimeError(seen))
    assert not lost_device(RuntimeError("CUDA Runtime Error: cudaErrorIllegalAddress (700)"))
    assert lost_device(RuntimeError("OpenCL: clFinish: CL_DEVICE_NOT_AVAILABLE"))
    assert not lost_device(RuntimeError("OpenCL: clFinish: CL_OUT_OF_RESOURCES"))
    # NVIDIA's driver reports a kernel that writes out of bounds so
    assert not lost_device(RuntimeError("OpenCL: clFinish: CL_INVALID_COMMAND_QUEUE"))
