"""Import TVM once, quickly, and explain where it is missing.

The TVMScript decorators in ``tvm.s_tir.tensor_intrin`` call `inspect.stack`, which resolves the
source file of every frame through all loaded modules: 40 to 90 s when torch is loaded. They use
only file, line and function, which a plain walk over the frames gives at once.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import shutil
import sys
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

from pruner.errors import MissingExtra


class Tvm(NamedTuple):
    """The modules of TVM 0.27 for tuning; properties import on first use."""

    tvm: Any
    s_tir: Any
    tirx: Any
    meta_schedule: Any

    @property
    def relax(self) -> Any:
        """``tvm.relax``: complete networks."""
        return importlib.import_module("tvm.relax")

    @property
    def ffi(self) -> Any:
        """``tvm_ffi``: walks, maps and hashes of TVM's objects."""
        return importlib.import_module("tvm_ffi")


@cache
def load_tvm() -> Tvm:
    """Return TVM's modules, imported on the first call.

    Raises:
        MissingExtra: TVM is not installed.
    """
    first = "tvm" not in sys.modules
    if shutil.which("nvcc") is not None:
        # TVM's default, NVRTC, needs a package (cuda-bindings) that TVM does not require
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    # Without this, tvm_ffi imports torch and queries its CUDA device. No worker forked from the
    # process can use the device then: every program ends with cudaErrorInitializationError.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    original = inspect.stack
    inspect.stack = _quick_stack  # type: ignore[assignment]
    try:
        tvm = importlib.import_module("tvm")
        importlib.import_module("tvm.s_tir.tensor_intrin")
        found = Tvm(
            tvm,
            importlib.import_module("tvm.s_tir"),
            importlib.import_module("tvm.tirx"),
            importlib.import_module("tvm.s_tir.meta_schedule"),
        )
        if first:  # imported objects stay: the collector need not walk them again and again
            gc.freeze()
        return found
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tvm", "tvm_ffi"):
            raise
        raise MissingExtra("apache-tvm", "tvm") from error
    finally:
        inspect.stack = original


def warm_worker() -> None:
    """Import TVM in a worker process of TVM before its time counts.

    ``LocalBuilder(initializer=warm_worker)`` and ``LocalRunner(initializer=warm_worker)``: TVM's
    workers are fresh processes whose slow import otherwise uses up the 30 s of a candidate.
    """
    load_tvm()


def _quick_stack(*_: object) -> list[inspect.FrameInfo]:
    frames: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back
    return frames
