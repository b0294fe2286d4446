"""Explain a missing CUDA runtime of TVM, and compile without a driver.

TVM 0.27 calls nvcc when a module is made, but only where its CUDA runtime, which needs the driver's
library, is loaded. Elsewhere a "built" program is source code until a device loads it.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pruner.tune.tvm_import import load_tvm

_MAKE = "ffi.Module.create.cuda"  # the function that TVM's code generator calls
_DRIVER = "libcuda.so.1"
_INSTALLED = Path("/usr/local")  # by CUDA's installer, and drivers of containers


def runtime_error() -> str | None:
    """Explain why TVM's CUDA runtime is missing in a line, else None."""
    if _is_loaded():
        return None
    try:
        ctypes.CDLL(str(_runtime()))
    except OSError as error:
        library = str(error).partition(":")[0]
        folder = next((str(path.parent) for path in _found(library)), f"the folder of {library}")
        return f"TVM cannot load its CUDA runtime ({error}); say LD_LIBRARY_PATH={folder}"
    return None


def _found(library: str) -> Iterator[Path]:
    """Yield the paths of a library in the usual places of CUDA."""
    for pattern in ("cuda*/lib*", "nvidia/lib*"):
        yield from sorted(_INSTALLED.glob(f"{pattern}/{library}"))
    for packages in sys.path:
        yield from sorted(Path(packages).glob(f"nvidia/*/lib/{library}"))


def cuda_environment() -> dict[str, str]:
    """Find ``PATH`` and ``LD_LIBRARY_PATH`` for nvcc and TVM's CUDA runtime.

    Only variables that need a change; libraries that the runtime lacks here are loaded.
    """
    folders = {"LD_LIBRARY_PATH": _lacking()}
    if shutil.which("nvcc") is None:
        compilers = sorted(_INSTALLED.glob("cuda*/bin/nvcc"))
        folders["PATH"] = [str(path.parent) for path in compilers[:1]]
    return {
        name: os.pathsep.join(filter(None, [*found, os.environ.get(name)]))
        for name, found in folders.items()
        if found
    }


def _lacking() -> list[str]:
    found: dict[str, str] = {}
    while True:
        try:
            ctypes.CDLL(str(_runtime()))
            break
        except OSError as error:
            library = str(error).partition(":")[0]
            path = next(_found(library), None)
            if path is None or library in found:
                break
            found[library] = str(path.parent)
            with suppress(OSError):  # `runtime_error` reports it
                # global: the runtime, loaded later, resolves its symbols against this library
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return list(dict.fromkeys(found.values()))


def provide_compiler() -> bool:
    """Make this process compile CUDA programs without a driver; return success.

    It must run no programs: an empty library stands in for the driver's, bound lazily. Nothing
    changes where the runtime is loaded, or nvcc or a C compiler is missing.
    """
    if _is_loaded():
        return True
    cc = shutil.which("cc")
    if cc is None or shutil.which("nvcc") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / _DRIVER
        words = [cc, "-shared", f"-Wl,-soname,{_DRIVER}", "-o", str(driver), "-x", "c", os.devnull]
        made = subprocess.run(words, capture_output=True, check=False)
        return made.returncode == 0 and _open(driver) and _open(_runtime()) and _is_loaded()


def _is_loaded() -> bool:
    return load_tvm().tvm.get_global_func(_MAKE, allow_missing=True) is not None


def _runtime() -> Path:
    return Path(load_tvm().tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"


def _open(library: Path) -> bool:
    """Load a library with lazy binding, which ctypes does not offer."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    return dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_GLOBAL) is not None
