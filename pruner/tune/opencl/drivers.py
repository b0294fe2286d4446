"""The environment of OpenCL's loader: system drivers, and PoCL's wheel."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pruner.errors import PrunerError

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_LIBRARY, _VENDORS = "PRUNER_OPENCL_LIBRARY", "OCL_ICD_VENDORS"
_SYSTEM = "libOpenCL.so.1"


def cache_folder() -> Path:
    """Create and return ``$XDG_CACHE_HOME/pruner/opencl``, for compiled files of this user.

    Raises:
        PrunerError: the folder cannot be made.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "pruner" / "opencl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrunerError(f"OpenCL: {error}; give a folder to write to: XDG_CACHE_HOME=") from error
    return folder


def driver_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Find the variables to set before libOpenCL is opened.

    Variables that are set already stay. The loader of pyopencl's wheel finds drivers by
    ``OCL_ICD_VENDORS`` alone, and crashes without ``PYOPENCL_HOME``. PoCL distributes a program's
    work groups over all cores of the machine; with one thread its device is one core.
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
    """Find the folder of the package without importing it.

    An import would open the loader before its environment is set.
    """
    found = importlib.util.find_spec("pyopencl")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _opens(library: str) -> bool:
    with suppress(OSError):
        return bool(ctypes.CDLL(library))
    return False


def _vendors(pocl: Path) -> Path:
    """Create a folder with the system's drivers and PoCL, by absolute paths."""
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
