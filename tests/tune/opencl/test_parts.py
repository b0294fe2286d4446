"""Parts of OpenCL devices that need no device: drivers, sources, launches, refusals."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pruner.errors import MissingExtra, PrunerError
from pruner.tune.measure.machine import make_platform, on_opencl
from pruner.tune.opencl import runtime
from pruner.tune.opencl.launches import _launch
from tests.tune.targets import device_of

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
    launch, sizes = _launch(line)
    assert launch["kernel"] == "kernel"
    assert (launch["global"], launch["local"]) == ([64, 2, 1], [8, 1, 1])
    assert launch["arguments"] == [
        {"buffer": 0}, {"buffer": 2}, {"value": 7, "dtype": "int32"},
        {"value": 0.5, "dtype": "float32"},
    ]  # fmt: skip
    assert sizes == {0: 256, 2: 64}


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


def test_a_cache_folder_that_cannot_be_made_names_its_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PrunerError, match="XDG_CACHE_HOME="):
        runtime.cache_folder()


def test_without_a_compiler_that_works_one_line_says_so(tmp_path, monkeypatch):
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


def test_a_device_is_chosen_by_number_or_by_words(driver):
    driver([GPU, CPU])
    first = runtime.find_device(None)
    assert (first.name, first.on_cpu, first.clock_hz) == ("Fast 7900", False, 2.5e9)
    assert first.has_half
    assert runtime.find_device(1).on_cpu
    assert runtime.find_device("1").number == 1
    assert runtime.find_device(None, "RX 6|fast 79").number == 0
    assert runtime.find_device(0, runtime.POCL).number == 0  # measure.device= comes first
    for asked in (2, "7900 XT", "9"):  # a number is no part of a name
        with pytest.raises(PrunerError, match=r"measure.device= one of: 0: Fast 7900"):
            runtime.find_device(asked)


def test_without_device_or_library_the_remedy_is_named(driver):
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
