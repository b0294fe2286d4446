"""TVM's OpenCL runtime in a process, and the devices that it finds."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from pruner.errors import MissingExtra, PrunerError
from pruner.tune.kinds import OPENCL
from pruner.tune.opencl.drivers import driver_environment
from pruner.tune.opencl.library import runtime_library
from pruner.tune.tvm_import import load_tvm

POCL = "Portable Computing Language"  # name of its platform
CHOSEN = "PRUNER_OPENCL_DEVICE"  # number of the device that TVM's opencl:0 is
_CPU = 2  # CL_DEVICE_TYPE_CPU
_RUN, _COMPILE, _RECORD = 0, 1, 2  # modes of runtime.cc
_LOST = ("CL_DEVICE_NOT_AVAILABLE", "CL_DEVICE_NOT_FOUND", "CL_INVALID_DEVICE")
_MODULE = "pruner.opencl.module"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCLDevice:
    """A device of this machine, in its driver's words; `number` is its place among all."""

    number: int
    driver: str
    vendor: str
    name: str
    version: str
    on_cpu: bool
    compute_units: int
    clock_hz: float
    max_threads_per_block: int
    shared_bytes_per_block: int
    has_half: bool

    def __str__(self) -> str:
        """For people, and what names of devices are looked for in."""
        return f"{self.number}: {self.name} ({self.vendor}; {self.driver}, {self.version})"


@cache
def load_runtime() -> None:
    """Give TVM its OpenCL runtime; no driver is opened yet.

    Raises:
        PrunerError: it cannot be compiled or loaded.
    """
    load_tvm()
    for name, value in driver_environment().items():
        os.environ[name] = value  # which the library's getenv sees, too
    try:
        ctypes.CDLL(str(runtime_library()))
    except OSError as error:
        raise PrunerError(f"OpenCL: {error}; delete that file, it is made anew") from error
    ffi = importlib.import_module("tvm_ffi")
    ffi.register_global_func("ffi.Module.create.opencl", _created, override=True)


def _created(code: Any, _: str, infos: Mapping[Any, Any], __: Any) -> Any:
    """What TVM's code generator makes a module with."""
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
    """OpenCL C with its arrays of local memory at the top of their kernels.

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
    """All OpenCL devices of this machine: GPUs, then accelerators, then CPUs.

    Raises:
        MissingExtra: no library of OpenCL is installed.
        PrunerError: the runtime cannot be compiled, or there is no device.
    """
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
    driver, vendor, name, version, kind, units, mhz, threads, shared, halves = fields
    return OpenCLDevice(
        number=number,
        driver=driver,
        vendor=vendor,
        name=name,
        version=version,
        on_cpu=bool(int(kind) & _CPU),
        compute_units=int(units),
        clock_hz=1e6 * int(mhz),
        max_threads_per_block=int(threads),
        shared_bytes_per_block=int(shared),
        has_half=bool(int(halves)),
    )


def find_device(asked: str | int | None, described: str | None = None) -> OpenCLDevice:
    """The device of a number or of words of its name, whatever their case.

    ``asked`` (measure.device=) comes before ``described`` (words, alternatives between ``|``, of a
    platform's file); None of both: the first device.

    Raises:
        PrunerError: there is none, or see :func:`devices`.
    """
    found = devices()
    words = str(asked) if asked is not None else described
    if words is None:
        return found[0]
    alternatives = [word.strip().lower() for word in words.split("|")]
    for one in found:
        named = any(word in str(one).lower() for word in alternatives)
        if words == str(one.number) or (named and not words.isdigit()):
            return one
    known = "; ".join(map(str, found))
    raise PrunerError(f"no OpenCL device here is {words}; measure.device= one of: {known}")


def lost_device(error: Exception) -> bool:
    """Whether an error of TVM's says that the device went away, which is no program's fault."""
    return any(word in str(error) for word in _LOST)


@contextmanager
def _mode(mode: int) -> Iterator[list[str]]:
    """Kernels are launched in a mode; the list holds the recorded launches afterwards."""
    set_mode = importlib.import_module("tvm_ffi").get_global_func("pruner.opencl.set_mode")
    lines = list[str]()
    set_mode(mode)
    try:
        yield lines
    finally:
        lines.extend(str(set_mode(_RUN)).splitlines())


def compile_kernels(module: Any, arguments: list[tuple[tuple[int, ...], str]]) -> None:
    """Have the device's driver compile all kernels of a program for their sizes of work groups.

    What the driver refuses is raised here, in TVM's kinds of errors, and its cache has the rest.
    """
    _called(module, arguments, _COMPILE)


def recorded_launches(module: Any, arguments: list[tuple[tuple[int, ...], str]]) -> list[str]:
    """The launches of a program as ``runtime.cc`` writes them; no device is needed."""
    return _called(module, arguments, _RECORD)


def _called(module: Any, arguments: list[tuple[tuple[int, ...], str]], mode: int) -> list[str]:
    tvm = load_tvm().tvm
    with _mode(mode) as lines:
        device = tvm.device(OPENCL, 0)
        arrays = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in arguments]
        module["main"](*arrays)
        if mode == _COMPILE:
            device.sync()
        del arrays
    return lines
