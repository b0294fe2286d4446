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
from pathlib import Path

from pruner.tune.tvm_import import load_tvm

_MAKE = "ffi.Module.create.cuda"  # the function that TVM's code generator calls
_DRIVER = "libcuda.so.1"
INSTALLED = Path("/usr/local")  # by CUDA's installer, and drivers of containers


def runtime_error() -> str | None:
    """Explain why TVM's CUDA runtime is missing in a line, else None."""
    if _is_loaded():
        return None
    try:
        ctypes.CDLL(str(runtime()))
    except OSError as error:
        library = str(error).partition(":")[0]
        folder = next((str(path.parent) for path in found(library)), f"the folder of {library}")
        return f"TVM cannot load its CUDA runtime ({error}); say LD_LIBRARY_PATH={folder}"
    return None


def found(library: str) -> Iterator[Path]:
    """Yield the paths of a library in the usual places of CUDA."""
    for pattern in ("cuda*/lib*", "nvidia/lib*"):
        yield from sorted(INSTALLED.glob(f"{pattern}/{library}"))
    for packages in sys.path:
        yield from sorted(Path(packages).glob(f"nvidia/*/lib/{library}"))


def provide_compiler() -> None:
    """Make this process compile CUDA programs without a driver.

    It must run no programs: an empty library stands in for the driver's, bound lazily. Nothing
    changes where the runtime is loaded, or nvcc or a C compiler is missing.
    """
    cc = shutil.which("cc")
    if _is_loaded() or cc is None or shutil.which("nvcc") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / _DRIVER
        words = [cc, "-shared", f"-Wl,-soname,{_DRIVER}", "-o", str(driver), "-x", "c", os.devnull]
        made = subprocess.run(words, capture_output=True, check=False)
        if made.returncode == 0 and _open(driver):
            _open(runtime())


def _is_loaded() -> bool:
    return load_tvm().tvm.get_global_func(_MAKE, allow_missing=True) is not None


def runtime() -> Path:
    """Return the path of TVM's CUDA runtime."""
    return Path(load_tvm().tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"


def _open(library: Path) -> bool:
    """Load a library with lazy binding, which ctypes does not offer."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    return dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_GLOBAL) is not None
