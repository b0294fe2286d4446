"""Compile and load TVM's OpenCL runtime; find devices; record launches, to run without TVM."""

import ctypes
import hashlib
import importlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from pruner.arrays import dtype_bytes
from pruner.errors import MissingExtra, PrunerError
from pruner.tune.kinds import OPENCL
from pruner.tune.tvm_import import load_tvm

Arguments = Sequence[tuple[tuple[int, ...], str]]  # shape and dtype of each

POCL = "Portable Computing Language"  # name of its platform
CHOSEN = "PRUNER_OPENCL_DEVICE"  # number of the device that TVM calls opencl:0
_CPU = 2  # CL_DEVICE_TYPE_CPU
_RUN, _COMPILE, _RECORD = 0, 1, 2  # modes of runtime.cc
_MODULE = "pruner.opencl.module"
_HERE = Path(__file__).parent
_SOURCE, _HEADERS = _HERE / "runtime.cc", _HERE / "include"
SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_LIBRARY, _VENDORS = "PRUNER_OPENCL_LIBRARY", "OCL_ICD_VENDORS"
_SYSTEM = "libOpenCL.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCLDevice:
    """A device as its driver describes it; `number` is its place among all."""

    number: int
    driver: str
    vendor: str
    name: str
    version: str
    on_cpu: bool
    max_threads_per_block: int
    shared_bytes_per_block: int
    has_half: bool

    def __str__(self) -> str:
        """Describe the device in the text that device names are searched in."""
        return f"{self.number}: {self.name} ({self.vendor}; {self.driver}, {self.version})"


def cache_folder() -> Path:
    """Create and return ``$XDG_CACHE_HOME/pruner/opencl``, or raise `PrunerError`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "pruner" / "opencl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrunerError(f"OpenCL: {error}; give a folder to write to: XDG_CACHE_HOME=") from error
    return folder


def driver_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Find the variables to set before libOpenCL is opened.

    The loader of pyopencl's wheel finds drivers by ``OCL_ICD_VENDORS`` alone, and crashes without
    ``PYOPENCL_HOME``. PoCL would distribute a program's work groups over all cores.
    """
    given = os.environ if environment is None else environment
    wanted = {"POCL_MAX_PTHREAD_COUNT": "1"}
    package = _pyopencl()
    if package is not None:
        wanted["PYOPENCL_HOME"] = str(package)
        # a system loader finds vendor drivers that the wheel's loader does not
        bundled = sorted((package / ".libs").glob("libOpenCL*.so*"))
        if bundled and not _opens(_SYSTEM):
            wanted[_LIBRARY] = str(bundled[0])
        pocl = sorted((package / ".libs").glob("libpocl*.so*"))
        if pocl and _VENDORS not in given:
            wanted[_VENDORS] = str(_vendors(pocl[0]))
    return {name: value for name, value in wanted.items() if name not in given}


def _pyopencl() -> Path | None:
    """Find the folder of the package; an import would open the loader too early."""
    found = importlib.util.find_spec("pyopencl")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _opens(library: str) -> bool:
    with suppress(OSError):
        return bool(ctypes.CDLL(library))
    return False


def _vendors(pocl: Path) -> Path:
    folder = cache_folder() / "vendors"
    folder.mkdir(exist_ok=True)
    wanted = {"pruner-pocl.icd": f"{pocl}\n"}
    if SYSTEM_VENDORS.is_dir():
        with suppress(OSError):
            wanted |= {p.name: p.read_text() for p in sorted(SYSTEM_VENDORS.glob("*.icd"))}
    for old in folder.glob("*.icd"):
        if old.name not in wanted:
            old.unlink(missing_ok=True)
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            # several processes may write at once: a reader sees a complete file or none
            partial = folder / f".{name}.{os.getpid()}"
            partial.write_text(text)
            partial.replace(path)
    return folder


def runtime_library() -> Path:
    """Return the runtime's library, compiled on first use (some seconds)."""
    tvm = load_tvm().tvm
    ffi: Any = importlib.import_module("tvm_ffi")
    texts = [path.read_bytes() for path in (_SOURCE, *sorted(_HEADERS.rglob("*.h")))]
    versions = f"{tvm.__version__} {ffi.__version__} {sysconfig.get_platform()}"
    # the library is bound to TVM's headers and our source: a change of either gets a new name
    digest = hashlib.sha256(b"\n".join([versions.encode(), *texts])).hexdigest()[:12]
    library = cache_folder() / f"runtime-tvm{tvm.__version__}-{digest}.so"
    if not library.is_file():
        _compile(library, Path(str(tvm.__file__)).parent, Path(str(ffi.__file__)).parent)
    return library


def _compile(library: Path, tvm: Path, ffi: Path) -> None:
    cc: Any = importlib.import_module("tvm.support.cc")
    compiler = cc.get_cc()
    if compiler is None:
        raise PrunerError(
            "OpenCL needs a C++ compiler once, to build TVM's OpenCL runtime; install g++"
        )
    partial = library.with_name(f".{os.getpid()}-{library.name}")
    options = ["-O1", "-std=c++17"]
    options += [f"-I{one}" for one in (_HEADERS, tvm / "include", ffi / "include")]
    libraries = [f"-L{tvm / 'lib'}", "-ltvm_runtime", f"-L{ffi / 'lib'}", "-ltvm_ffi"]
    libraries += ["-ldl", "-lstdc++"]  # a compiler of C links no library of C++ by itself
    try:
        cc.create_shared(str(partial), [str(_SOURCE), *libraries], options, compiler)
        partial.replace(library)
    except (OSError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if "error: " in line]
        raise PrunerError(
            f"OpenCL: {compiler} cannot build TVM's OpenCL runtime: {(lines or [str(error)])[0]}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


@cache
def load_runtime() -> None:
    """Load TVM's OpenCL runtime, open no driver; raise `PrunerError` on failure."""
    load_tvm()
    for name, value in driver_environment().items():
        os.environ[name] = value  # calls setenv, so the library's getenv sees the value, too
    try:
        ctypes.CDLL(str(runtime_library()))
    except OSError as error:
        raise PrunerError(f"OpenCL: {error}; delete that file, it is made anew") from error
    ffi = importlib.import_module("tvm_ffi")
    ffi.register_global_func("ffi.Module.create.opencl", _created, override=True)


def _created(code: Any, _: str, infos: Mapping[Any, Any], __: Any) -> Any:
    lines = [
        "|".join((str(name), _joined(info.arg_types), _joined(info.launch_param_tags)))
        for name, info in infos.items()
    ]
    text = outermost(bytes(code).decode())
    return importlib.import_module("tvm_ffi").get_global_func(_MODULE)(text, "\n".join(lines))


def _joined(words: Any) -> str:
    return ",".join(str(word) for word in words)


_KERNEL = re.compile(r"^__kernel void .*\{$", re.MULTILINE)
_LOCAL = re.compile(r"^[ ]+(__local [\w]+ \w+\[\d+\];)\n", re.MULTILINE)


def outermost(source: str) -> str:
    """Move the local arrays of OpenCL C to their kernels' top.

    The language allows them nowhere else (OpenCL C 3.0, 6.7.2), and without ``StorageRewrite`` TVM
    declares them in the loops that use them. TVM gives every array of a kernel its own name.
    """
    starts = [found.start() for found in _KERNEL.finditer(source)]
    parts = [source[: starts[0]] if starts else source]
    for start, end in pairwise([*starts, len(source)]):
        kernel = source[start:end]
        arrays = [f"  {found}\n" for found in _LOCAL.findall(kernel)]
        head, rest = kernel.split("\n", 1)
        parts.append("".join([head, "\n", *arrays, _LOCAL.sub("", rest)]))
    return "".join(parts)


def devices() -> list[OpenCLDevice]:
    """List all OpenCL devices: GPUs, accelerators, then CPUs; raise `PrunerError` for none."""
    load_runtime()
    ffi = importlib.import_module("tvm_ffi")
    text = str(ffi.get_global_func("pruner.opencl.devices")())
    if not text:
        why = str(ffi.get_global_func("pruner.opencl.why")())
        if "libOpenCL" in why:
            raise MissingExtra("an OpenCL library, with PoCL as its driver,", "opencl")
        raise PrunerError(f"OpenCL: {why}; PoCL, a driver for CPUs: pip install 'pruner[opencl]'")
    return [_device(number, line.split("\t")) for number, line in enumerate(text.splitlines())]


def _device(number: int, fields: list[str]) -> OpenCLDevice:
    driver, vendor, name, version, kind, _, _, threads, shared, halves = fields
    return OpenCLDevice(
        number=number,
        driver=driver,
        vendor=vendor,
        name=name,
        version=version,
        on_cpu=bool(int(kind) & _CPU),
        max_threads_per_block=int(threads),
        shared_bytes_per_block=int(shared),
        has_half=bool(int(halves)),
    )


def find_device(wanted: str | int | None, described: str | None = None) -> OpenCLDevice:
    """Find a device by number or words of its name, in any case.

    ``wanted`` (measure.device=) comes before ``described`` (words, alternatives between ``|``, of a
    platform's file); None of both: the first device. Raises `PrunerError` for none.
    """
    found = devices()
    words = str(wanted) if wanted is not None else described
    if words is None:
        return found[0]
    alternatives = [word.strip().lower() for word in words.split("|")]
    for one in found:
        named = any(word in str(one).lower() for word in alternatives)
        if words == str(one.number) or (named and not words.isdigit()):
            return one
    known = "; ".join(map(str, found))
    raise PrunerError(f"no OpenCL device here is {words}; measure.device= one of: {known}")


def compile_kernels(module: Any, arguments: Arguments) -> None:
    """Compile a program's kernels by the driver, whose errors are raised here."""
    _called(module, arguments, _COMPILE)


def _called(module: Any, arguments: Arguments, mode: int) -> list[str]:
    """Call a program in a mode; return the recorded launches."""
    tvm = load_tvm().tvm
    set_mode = importlib.import_module("tvm_ffi").get_global_func("pruner.opencl.set_mode")
    set_mode(mode)
    try:
        device = tvm.device(OPENCL, 0)
        # sizes are needed, values are not: no kernel runs in these modes
        arrays = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in arguments]
        module["main"](*arrays)
        if mode == _COMPILE:
            device.sync()
        del arrays
    finally:
        lines = str(set_mode(_RUN)).splitlines()
    return lines


# Stands beside the kernels; `plan` is what `launch_plan` makes.
RUNNER = '''"""Run a kernel of this folder without TVM; pip install pyopencl numpy.

    python run_opencl.py KERNEL.json            with random inputs, timed by the device
    from run_opencl import run; run("KERNEL.json", *inputs)     gives the output
"""
import json, pathlib, sys  # noqa: E401
import numpy, pyopencl  # noqa: E401


def run(path, *inputs):
    path = pathlib.Path(path)
    plan, text = json.loads(path.read_text()), path.with_suffix(".cl").read_text()
    context = pyopencl.create_some_context(interactive=False)
    profiled = pyopencl.command_queue_properties.PROFILING_ENABLE
    queue = pyopencl.CommandQueue(context, properties=profiled)
    program, flags = pyopencl.Program(context, text).build(), pyopencl.mem_flags.READ_WRITE
    sizes = [argument["bytes"] for argument in plan["arguments"]] + plan["workspaces"]
    buffers = [pyopencl.Buffer(context, flags, size) for size in sizes]
    for buffer, array in zip(buffers, inputs):
        pyopencl.enqueue_copy(queue, buffer, numpy.ascontiguousarray(array))
    events = []
    for launch in plan["launches"]:
        arguments = [
            buffers[a["buffer"]] if "buffer" in a else numpy.dtype(a["dtype"]).type(a["value"])
            for a in launch["arguments"]
        ]
        kernel = pyopencl.Kernel(program, launch["kernel"])
        events.append(kernel(queue, launch["global"], launch["local"], *arguments))
    last = plan["arguments"][-1]
    output = numpy.empty(last["shape"], last["dtype"])
    pyopencl.enqueue_copy(queue, output, buffers[len(plan["arguments"]) - 1]).wait()
    run.seconds = 1e-9 * sum(event.profile.end - event.profile.start for event in events)
    return output


def drawn(shape, dtype):
    found = numpy.random.rand(*shape) if "float" in dtype else numpy.random.randint(8, size=shape)
    return numpy.asarray(found).astype(dtype)


if __name__ == "__main__":
    arguments = json.loads(pathlib.Path(sys.argv[1]).read_text())["arguments"]
    arrays = [drawn(a["shape"], a["dtype"]) for a in arguments[:-1]]
    output = run(sys.argv[1], *arrays)
    print(output.shape, output.dtype, output.ravel()[:4], f"{1e3 * run.seconds:.3f} ms")
'''


def launch_plan(module: Any, arguments: Arguments, target: str) -> dict[str, Any]:
    """Describe as JSON how a program's kernels are launched; no device is needed.

    ``arguments`` are those of ``main``, the output last, with shape, dtype and bytes;
    ``workspaces`` the bytes of further buffers. Buffers are numbered in this order. A launch has
    global and local sizes (x, y, z) in work items, and the kernel's arguments in order.
    """
    recorded = [_launch(line) for line in _called(module, arguments, _RECORD)]
    sizes = {number: size for _, found in recorded for number, size in found.items()}
    return {
        "target": target,
        "arguments": [
            {"shape": list(shape), "dtype": dtype, "bytes": prod(shape) * dtype_bytes(dtype)}
            for shape, dtype in arguments
        ],
        "workspaces": [sizes[number] for number in sorted(sizes) if number >= len(arguments)],
        "launches": [launch for launch, _ in recorded],
    }


def _launch(line: str) -> tuple[dict[str, Any], dict[int, int]]:
    name, *words = line.split(" ")
    # runtime.cc writes: name, global x y z, local x y z, then the arguments
    sizes, buffers = [int(word) for word in words[:6]], dict[int, int]()
    given = list[dict[str, Any]]()
    for word in words[6:]:
        dtype, *values = word.split(":")
        if dtype == "handle":
            number, size = map(int, values)
            buffers[number] = size
            given.append({"buffer": number})
        else:
            given.append({"value": float(values[0]), "dtype": dtype})
    return {"kernel": name, "global": sizes[:3], "local": sizes[3:], "arguments": given}, buffers
