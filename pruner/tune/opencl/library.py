"""Compile ``runtime.cc`` once for every version of TVM."""

from __future__ import annotations

import hashlib
import importlib
import os
import sysconfig
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.opencl.drivers import cache_folder
from pruner.tune.tvm_import import load_tvm

HERE = Path(__file__).parent
_SOURCE, _HEADERS = HERE / "runtime.cc", HERE / "include"


def runtime_library() -> Path:
    """Return the runtime's library, compiled on first use (some seconds).

    Raises:
        PrunerError: no compiler, or it fails.
    """
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
