"""OpenCL: parts that need no device; on PoCL programs are right, and run without TVM."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.common.comparison import started
from pruner.errors import MissingExtra, PrunerError
from pruner.tune.compiling import compiled
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.machine import make_platform, on_opencl
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings
from pruner.tune.measure.numerics import inputs, worst_error
from pruner.tune.opencl import runtime
from pruner.tune.opencl.runtime import CHOSEN, RUNNER, launch_plan, load_runtime
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_file, from_operator
from tests.paths import REPOSITORY
from tests.tune.cuda_programs import DOUBLE, HEAD, UNKNOWN, kernel
from tests.tune.measure.test_measurer import measured
from tests.tune.some_slow import some_slow
from tests.tune.targets import device_of
from tests.tune.unhurried import UNHURRIED

pytestmark = pytest.mark.tvm

SOURCE = """// Function: first
__kernel void first(__global float* restrict a) {
  float b[4];
  for (int i = 0; i < 4; ++i) {
    __local float a_shared[32];
    a_shared[i] = a[i];
    __local float4 more[8];
  }
}

__kernel void second(__global float* restrict a) {
  __local float a_shared[16];
  a[0] = a_shared[0];
}
"""


def test_arrays_of_local_memory_stand_at_the_top_of_their_kernel():
    found = runtime.outermost(SOURCE)
    first, second = found.split("__kernel void ")[1:]
    assert first.splitlines()[1:3] == ["  __local float a_shared[32];", "  __local float4 more[8];"]
    assert second.splitlines()[1] == "  __local float a_shared[16];"
    assert sorted(found.split()) == sorted(SOURCE.split())  # nothing is lost, nothing is twice
    assert runtime.outermost("// nothing\n") == "// nothing\n"


def test_a_recorded_launch_is_read():
    line = "kernel 64 2 1 8 1 1 handle:0:256 handle:2:64 int32:7 float32:0.5"
    launch, sizes = runtime._launch(line)
    assert launch["kernel"] == "kernel"
    assert (launch["global"], launch["local"]) == ([64, 2, 1], [8, 1, 1])
    assert launch["arguments"] == [
        {"buffer": 0}, {"buffer": 2}, {"value": 7, "dtype": "int32"},
        {"value": 0.5, "dtype": "float32"},
    ]  # fmt: skip
    assert sizes == {0: 256, 2: 64}


def test_an_argument_that_no_kernel_reads_has_its_bytes(monkeypatch):
    launch = "kernel 64 1 1 8 1 1 handle:1:256 handle:3:40"
    monkeypatch.setattr(runtime, "_called", lambda *_: [launch])
    given = [((3,), "int8"), ((8, 8), "float32"), ((), "float16")]
    plan = launch_plan(None, given, "a target")
    assert [argument["bytes"] for argument in plan["arguments"]] == [3, 256, 2]
    assert plan["workspaces"] == [40]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8", "uint8", "bool"])
def test_random_inputs_of_an_exported_kernel_differ(dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace())
    exec(RUNNER, names := {"__name__": "run_opencl"})
    found = names["drawn"]([4, 50], dtype)
    assert (found.shape, found.dtype) == ((4, 50), dtype)
    assert len(np.unique(found)) > 1
    assert names["drawn"]([], dtype).shape == ()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The files of a pyopencl wheel with PoCL, and a user's cache folder."""
    package = tmp_path / "pyopencl"
    (package / ".libs").mkdir(parents=True)
    for name in ("libOpenCL-1.so.1.0.0", "libpocl-2.so"):
        (package / ".libs" / name).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "_pyopencl", lambda: package)
    monkeypatch.setattr(runtime, "_opens", lambda _: False)
    monkeypatch.setattr(runtime, "SYSTEM_VENDORS", tmp_path / "none")
    return package


def test_pocl_of_pip_is_found_and_is_one_core(wheel):
    found = runtime.driver_environment({})
    assert found["PYOPENCL_HOME"] == str(wheel)
    assert found["PRUNER_OPENCL_LIBRARY"] == str(wheel / ".libs" / "libOpenCL-1.so.1.0.0")
    assert found["POCL_MAX_PTHREAD_COUNT"] == "1"
    icd = Path(found["OCL_ICD_VENDORS"]) / "pruner-pocl.icd"
    assert icd.read_text() == f"{wheel / '.libs' / 'libpocl-2.so'}\n"


def test_drivers_of_the_system_stay_and_so_does_what_the_user_says(wheel, tmp_path, monkeypatch):
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    (vendors / "amd.icd").write_text("libamdocl64.so\n")
    monkeypatch.setattr(runtime, "SYSTEM_VENDORS", vendors)
    monkeypatch.setattr(runtime, "_opens", lambda _: True)
    found = runtime.driver_environment({"POCL_MAX_PTHREAD_COUNT": "4"})
    assert "PRUNER_OPENCL_LIBRARY" not in found  # the system's loader is taken
    assert "POCL_MAX_PTHREAD_COUNT" not in found
    folder = Path(found["OCL_ICD_VENDORS"])
    assert sorted(one.name for one in folder.iterdir()) == ["amd.icd", "pruner-pocl.icd"]
    (vendors / "amd.icd").unlink()
    runtime.driver_environment({})
    assert [one.name for one in folder.iterdir()] == ["pruner-pocl.icd"]
    assert "OCL_ICD_VENDORS" not in runtime.driver_environment({"OCL_ICD_VENDORS": "mine"})


def test_without_a_compiler_or_a_cache_folder_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrunerError, match=r"install g\+\+"):
        runtime.runtime_library()
    broken = tmp_path / "broken.cc"
    broken.write_text("nonsense;\n")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "_SOURCE", broken)
    with pytest.raises(PrunerError, match=r"cannot build TVM's OpenCL runtime: .*nonsense"):
        runtime.runtime_library()
    assert list((tmp_path / "pruner" / "opencl").glob("*.so")) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PrunerError, match="XDG_CACHE_HOME="):
        runtime.cache_folder()


GPU = ("Made Up", "Vendor", "Fast 7900", "1.2", "4", "96", "2500", "256", "65536", "1")
CPU = ("Portable Computing Language", "pthread", "cpu", "3.0", "2", "1", "3100", "4096", "9", "0")


@pytest.fixture
def driver(monkeypatch):
    """Says what the driver answers."""

    def says(devices, why=""):
        text = "".join("\t".join(one) + "\n" for one in devices)
        answers = {"pruner.opencl.devices": lambda: text, "pruner.opencl.why": lambda: why}
        ffi = SimpleNamespace(get_global_func=answers.get)
        monkeypatch.setattr(runtime, "load_runtime", lambda: None)
        monkeypatch.setattr(runtime, "importlib", SimpleNamespace(import_module=lambda _: ffi))

    return says


def test_a_device_is_chosen_by_number_or_by_words_and_without_one_the_remedy_is_named(driver):
    driver([GPU, CPU])
    first = runtime.find_device(None)
    assert (first.name, first.on_cpu) == ("Fast 7900", False)
    assert first.has_half
    assert runtime.find_device(1).on_cpu
    assert runtime.find_device("1").number == 1
    assert runtime.find_device(None, "RX 6|fast 79").number == 0
    assert runtime.find_device(0, runtime.POCL).number == 0  # measure.device= comes first
    for asked in (2, "7900 XT", "9"):  # a number is no part of a name
        with pytest.raises(PrunerError, match=r"measure.device= one of: 0: Fast 7900"):
            runtime.find_device(asked)
    driver([], "libOpenCL.so.1: cannot open shared object file")
    with pytest.raises(MissingExtra, match=r"pip install 'pruner\[opencl\]'"):
        runtime.devices()
    driver([], "no driver is installed")
    with pytest.raises(PrunerError, match=r"no driver is installed.*pruner\[opencl\]"):
        runtime.devices()


def test_limits_are_asked_from_a_device_that_no_file_describes(driver):
    driver([GPU, CPU])

    def limits(name, asked=None):
        device = device_of(name)
        placed, found = on_opencl(make_platform(device), device, asked)
        attrs = placed.target.attrs
        assert placed.environments == ({runtime.CHOSEN: str(found.number)},)
        return int(attrs["max_num_threads"]), int(attrs["max_shared_memory_per_block"])

    assert limits("opencl") == (256, 65536)
    assert limits("rx7900", 1) == (4096, 9)  # another device than the file's
    assert limits("opencl-pocl") == (1024, 9)  # the file's, but never more than there is
    with pytest.raises(PrunerError, match="no OpenCL device here is A770"):
        limits("arc-a770")


ENDLESS = """b[i] = a[i]
                while T.bool(True):
                    b[i] = b[i] + T.float32(1)"""


def program(folder, name, statement=DOUBLE, **places):
    path = folder / f"{name}.py"
    path.write_text(HEAD + kernel(statement, **places))
    return from_file(path)[0].module


def settings(**more):
    timing = Timing(repeats=2, min_repeat_ms=1)
    return MeasureSettings(timing=timing, builders=1, run_timeout_s=5.0, **more)


@pytest.fixture(scope="module")
def measurer(pocl):
    with DeviceMeasurer(pocl, settings(), Phases()) as made:
        assert made.exclusive  # its programs run on the cores that the search works on
        yield made


def test_what_fails_costs_one_candidate_and_has_its_kind(measurer, tmp_path):
    good, refused = program(tmp_path, "good"), program(tmp_path, "refused", UNKNOWN)
    large = program(tmp_path, "large", blocks=1, lanes=8192, index="lane % 1024")
    outcomes = measured(measurer, [good, refused, large, good])
    assert [o.error for o in outcomes] == [None, "build_error", "build_error", None]
    assert "no_such_function" in outcomes[1].message
    assert "too many work items a group (8192, at most 4096)" in outcomes[2].message
    assert all(o.latency_s > 0 for o in (outcomes[0], outcomes[3]))


@pytest.mark.slow
def test_a_kernel_that_never_ends_costs_one_candidate(measurer, tmp_path):
    bad = program(tmp_path, "bad", ENDLESS)
    outcomes = measured(measurer, [bad, program(tmp_path, "good")])
    assert [o.error for o in outcomes] in (["run_timeout", None], ["build_timeout", None])


def test_a_device_that_is_lost_is_no_fault_of_its_program(pocl, tmp_path):
    gone = replace(pocl, environments=({CHOSEN: "7"},))
    with DeviceMeasurer(gone, settings(), Phases()) as made:
        (outcome,) = measured(made, [program(tmp_path, "good")])
    assert outcome.error == "run_no_device"
    assert not outcome.concerns_program


LOSES = """extern "C" int clFinish(void*) { return -36; }"""
FREES = """
from pruner.tune.opencl.runtime import load_runtime
from pruner.tune.tvm_import import load_tvm

load_runtime()
tvm = load_tvm().tvm
device = tvm.device("opencl", 0)
array = tvm.runtime.empty((4,), "float32", device)
del array
try:
    device.sync()
except Exception as error:
    print(str(error).splitlines()[-1])
"""


def test_a_device_that_is_lost_ends_no_process(pocl, tmp_path):
    """A loader whose wait fails as on a lost device; memory is freed then as ever."""
    real, shim = runtime.driver_environment({}).get("PRUNER_OPENCL_LIBRARY"), tmp_path / "shim.so"
    (tmp_path / "shim.cc").write_text(LOSES)
    loader = ["-l:libOpenCL.so.1"] if real is None else [real, f"-Wl,-rpath,{Path(real).parent}"]
    words = ["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", "shim.cc", *loader, "-o", str(shim)]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", FREES], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PRUNER_OPENCL_LIBRARY": str(shim)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "clFinish: CL_INVALID_COMMAND_QUEUE" in done.stdout


PRODUCT = {"operator": "matmul", "m": 32, "n": 16, "k": 32, "epilogue": ["bias", "relu"]}
AVERAGE = {"operator": "pool", "kind": "avg", "n": 1, "c": 8, "h": 8, "w": 8, "kh": 3, "kw": 3}
AVERAGE |= {"stride": 1, "padding": 1}
SOFTMAX = {"operator": "softmax", "rows": 8, "columns": 32}


@some_slow("spec", [PRODUCT], [AVERAGE, SOFTMAX])
def test_a_program_of_every_space_is_right_and_its_launches_run_without_tvm(pocl, tmp_path, spec):
    tvm, module = load_tvm().tvm, from_operator(spec).module
    load_runtime()
    given = inputs(arguments(module))
    wanted = [tvm.runtime.tensor(array) for array in given]
    tvm.compile(module, target="llvm")["main"](*wanted)
    (tmp_path / "run_opencl.py").write_text(RUNNER)
    for number, design in enumerate(design_spaces(module, pocl.target)):
        (row,) = BatchedSpace(design).sample(1, np.random.default_rng(number))
        built = compiled(design.replay(row, 1).mod, pocl.target)
        arrays = [tvm.runtime.tensor(array, tvm.device("opencl", 0)) for array in given]
        built["main"](*arrays)
        assert worst_error(arrays[-1].numpy(), wanted[-1].numpy()) < 1e-5
    plan = launch_plan(built, arguments(module), "a target")  # of the last one
    (tmp_path / "kernel.json").write_text(json.dumps(plan))
    (tmp_path / "kernel.cl").write_text(built.mod.imports[0].inspect_source())
    np.savez(tmp_path / "given.npz", *given)
    script = (
        "import numpy, run_opencl; given = numpy.load('given.npz'); "
        "out = run_opencl.run('kernel.json', *[given[n] for n in given.files[:-1]]); "
        "numpy.save('out.npy', out)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert worst_error(np.load(tmp_path / "out.npy"), wanted[-1].numpy()) < 1e-5


def command(script, *words, code=0, **environment):
    done = subprocess.run(
        started([script, *words], REPOSITORY),
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr.splitlines()[-1]


SIZES = ["workload.m=32", "workload.n=32", "workload.k=32"]
MATMUL = ["platform=opencl-pocl", "workload=matmul", *SIZES]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pruner_live", "metaschedule", "random"])
def test_the_commands_tune_go_on_and_deploy(pocl, tmp_path, policy):
    words = [*MATMUL, f"policy={policy}", "budget.batch=4", "measure.min_repeat_ms=1", *UNHURRIED]
    found = command("tune.py", *words, "budget.trials=8", f"outputs={tmp_path}")
    assert (found["failed"], found["checked"], found["trials"]) == (0, True, 8)
    again = command("tune.py", f"resume={found['run_dir']}", "budget.trials=12")
    assert again["trials"] == 12
    made = command("deploy", f"run={found['run_dir']}")
    (kernel,) = made["kernels"].values()
    assert [os.path.splitext(one)[1] for one in kernel["sources"]] == [".cl", ".json", ".py"]  # noqa: PTH122


@pytest.mark.slow
def test_what_cannot_work_is_one_line(pocl, tmp_path):
    told = command("tune.py", "platform=opencl-pocl", "network=resnet18", code=2)
    assert "networks are not built for OpenCL" in told
    told = command("tune.py", *MATMUL, "workload.dtype=float16", code=2)
    assert "cl_khr_fp16" in told
    told = command("tune.py", *MATMUL, "measure.device=Radeon", code=2)
    assert "measure.device= one of: 0:" in told
    told = command("tune.py", *MATMUL, code=2, PRUNER_OPENCL_LIBRARY=str(tmp_path / "libOpenCL.so"))
    assert "pip install 'pruner[opencl]'" in told


def test_vectors_whose_lanes_straddle_rows_are_written_out(pocl):
    """TVM by itself stops at them: "(eval_vec_) is false"."""
    shape = {"n": 1, "ci": 128, "h": 7, "w": 7, "co": 128, "kh": 3, "kw": 3, "stride": 1}
    workload = from_operator({"operator": "conv2d", "padding": 1, **shape})
    row = [1, 1, 1, 1, 1, 4, 1, 1, 4, 8, 1, 1, 1, 7, 1, 1, 7, 1, 1, 1, 4, 32, 1, 1, 1, 3, 1, 1, 3]
    design = design_spaces(workload.module, pocl.target)[0]
    schedule = design.replay(np.array([*row, 2, 3, 0]), 1)
    assert "__kernel" in compiled(schedule.mod, pocl.target).mod.imports[0].inspect_source()
