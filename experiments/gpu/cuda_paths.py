"""Find nvcc and the libraries of TVM's CUDA runtime where no variable has their folders."""

import ctypes
import os
import shutil
from contextlib import suppress

from pruner.tune import cuda


def cuda_environment() -> dict[str, str]:
    """Find ``PATH`` and ``LD_LIBRARY_PATH`` for nvcc and TVM's CUDA runtime.

    Only variables that need a change; libraries that the runtime lacks here are loaded.
    """
    folders = {"LD_LIBRARY_PATH": _lacking()}
    if shutil.which("nvcc") is None:
        compilers = sorted(cuda.INSTALLED.glob("cuda*/bin/nvcc"))
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
            ctypes.CDLL(str(cuda.runtime()))
            break
        except OSError as error:
            library = str(error).partition(":")[0]
            path = next(cuda.found(library), None)
            if path is None or library in found:
                break
            found[library] = str(path.parent)
            with suppress(OSError):  # `runtime_error` reports it
                # global: the runtime, loaded later, resolves its symbols against this library
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return list(dict.fromkeys(found.values()))
