"""Compile scheduled programs by TVM, with its options and our rewrites."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.even_vectors import even_vectors
from pruner.tune.kinds import is_cuda, is_gpu
from pruner.tune.lanes import copies_ahead, lanes_written_out
from pruner.tune.tvm_import import load_intrinsics, load_tvm
from pruner.tune.unrolling import unrolled_by_nvcc
from pruner.tune.vector_math import with_vector_math


def compiled(
    module: Any, target: Any, *, exact: bool = False, instruments: Sequence[Any] = ()
) -> Any:
    """Compile scheduled functions to an executable.

    ``exact``: exp and similar functions call the C library, also where vector units could compute
    them. ``instruments`` see what TVM's passes do. See :func:`pass_context` for the arguments.
    """
    load_intrinsics(target)
    # TVM passes nvcc the architecture of the target in scope, else of a device of this machine
    scope = target if is_cuda(target) else nullcontext()
    with scope, pass_context(module, target, instruments):
        return load_tvm().tvm.compile(written_out(module, target, exact=exact), target=target)


def link(
    executable: Any,
    target: Any,
    path: Path,
    options: Sequence[str] = (),
    objects: Callable[[], Sequence[str]] | None = None,
) -> None:
    """Link an executable to a library, with further options of the compiler.

    ``objects`` gives further object files, and is called once all others are written.

    Raises:
        PrunerError: it is for processors of another family, and their compiler is missing.
    """
    compiler, triple = None, foreign_triple(target)
    if triple is not None:
        compiler = f"{triple}-g++"
        if shutil.which(compiler) is None:
            raise PrunerError(
                f"linking for {triple} needs {compiler}, which is not on the PATH (Debian's "
                f"package g++-{triple} has it)"
            )
    how: dict[str, Any] = {"options": list(options), "cc": compiler}
    if objects is not None:
        create_shared = importlib.import_module("tvm.support.cc").create_shared

        def linked(output: str, files: list[str], **given: Any) -> None:
            create_shared(output, [*files, *objects()], **given)

        how["fcompile"] = linked
    executable.export_library(str(path), **how)


def foreign_triple(target: Any) -> str | None:
    """Return the triple of a target whose programs this processor cannot run."""
    host = target if target.host is None else target.host
    triple, ours = host.attrs.get("mtriple"), load_tvm().tvm.target.codegen.llvm_get_system_triple()
    if triple is None or str(triple).partition("-")[0] == str(ours).partition("-")[0]:
        return None
    # as its compiler is called: LLVM puts a vendor between processor and system
    return str(triple).replace("-unknown-", "-").replace("-pc-", "-")


def written_out(module: Any, target: Any, *, exact: bool = False) -> Any:
    """Rewrite scheduled functions for TVM's compiler, equally for kernels and networks.

    So a network contains the programs that were measured. On GPUs, vectors that TVM cannot write
    and loops that it must not unroll are rewritten; on CPUs long vectors of odd lanes are divided,
    and exp and similar functions become vector instructions, unless they must be ``exact``.
    """
    if is_gpu(target):
        return lanes_written_out(unrolled_by_nvcc(module), target)
    if target.kind.name == "llvm":
        module = even_vectors(module)
    return with_vector_math(module, target, exact=exact)


def pass_context(module: Any, target: Any, instruments: Sequence[Any] = ()) -> Any:
    """Make the compiler's settings for a module.

    They are a context to enter around the compiler.

    Some pipelines copy into shared memory ahead of the use: those of ``mma`` programs, and of two
    of the three spaces on lanes that MetaSchedule has for sm_80 and newer. A copy through registers
    would be waited for at once, so that the pipeline would cost shared memory and gain nothing. TVM
    makes the copies asynchronous (``cp.async`` of 4, 8 or 16 bytes; vectors of other sizes stay as
    they are) only on request.

    For GPUs without ``StorageRewrite``: that of TVM 0.27 gives a buffer the memory of another,
    which later passes may refuse: float32 sums staged where float16 operands of a tensor core lay
    ("tvm_access_ptr element type must match the source buffer"), two sums over threads in one place
    ("load_remap_.count"). Shared memory is still merged, by ``MergeSharedMemoryAllocations``.

    Args:
        module: scheduled functions, alone or of a network.
        target: the target to compile for.
        instruments: see what the passes do.
    """
    config: dict[str, bool] = {}
    if is_gpu(target):
        config = {"tirx.disable_storage_rewrite": True}
    if is_cuda(target):
        functions = [f for _, f in module.functions_items() if type(f).__name__ == "PrimFunc"]
        config |= {"tirx.use_async_copy": True} if any(map(copies_ahead, functions)) else {}
    return load_tvm().tvm.transform.PassContext(config=config, instruments=instruments)
