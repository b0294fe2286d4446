"""Compile scheduled programs by TVM, with its options and our rewrites; size the result."""

import importlib
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from math import prod
from pathlib import Path
from typing import Any

from pruner.arrays import dtype_bytes
from pruner.errors import PrunerError
from pruner.tune.kinds import is_cuda, is_gpu
from pruner.tune.lane_guards import guards_shared
from pruner.tune.lanes import copies_ahead, lanes_written_out, unrolled_by_nvcc
from pruner.tune.tvm_import import (
    PARALLEL,
    UNROLLED,
    VECTORIZED,
    load_intrinsics,
    load_tvm,
    map_loops,
    replaced,
)
from pruner.tune.vector_math import with_vector_math

_LONGEST, _SHORTEST = 16, 4  # lanes: shorter vectors fit a register; shorter parts gain nothing
_PLANNED = "StorageRewrite"  # TVM's pass behind which allocations share memory and move no more
_EXECUTABLE = 4  # SHF_EXECINSTR of an ELF section
_LANES = "x"  # float32x16: a vector


def compiled(
    module: Any, target: Any, *, exact: bool = False, instruments: Sequence[Any] = ()
) -> Any:
    """Compile scheduled functions to an executable; ``exact``: with libm's exp."""
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

    ``objects`` gives further object files, once all others are written. Raises `PrunerError`: see
    :func:`linker`.
    """
    how: dict[str, Any] = {"options": list(options), "cc": linker(target)}
    if objects is not None:
        create_shared = importlib.import_module("tvm.support.cc").create_shared

        def linked(output: str, files: list[str], **given: Any) -> None:
            create_shared(output, [*files, *objects()], **given)

        how["fcompile"] = linked
    executable.export_library(str(path), **how)


def linker(target: Any) -> str | None:
    """Return the compiler that links for another family of processors, else None.

    Raises `PrunerError` where it is missing.
    """
    triple = foreign_triple(target)
    compiler = None if triple is None else f"{triple}-g++"
    if compiler is not None and shutil.which(compiler) is None:
        raise PrunerError(
            f"linking for {triple} needs {compiler}, which is not on the PATH (Debian's package "
            f"g++-{triple} has it)"
        )
    return compiler


def foreign_triple(target: Any) -> str | None:
    """Return the triple of a target whose programs this processor cannot run."""
    host = target if target.host is None else target.host
    triple, ours = host.attrs.get("mtriple"), load_tvm().tvm.target.codegen.llvm_get_system_triple()
    if triple is None or str(triple).partition("-")[0] == str(ours).partition("-")[0]:
        return None
    # as its compiler is called: LLVM puts a vendor between processor and system
    return str(triple).replace("-unknown-", "-").replace("-pc-", "-")


def written_out(module: Any, target: Any, *, exact: bool = False) -> Any:
    """Rewrite scheduled functions for TVM's compiler, equally for kernels and networks."""
    if is_gpu(target):
        return lanes_written_out(unrolled_by_nvcc(guards_shared(module)), target)
    if target.kind.name == "llvm":
        module = even_vectors(module)
    return with_vector_math(module, target, exact=exact)


def pass_context(
    module: Any, target: Any, instruments: Sequence[Any] = (), *, cuda_graph: bool = False
) -> Any:
    """Make the compiler's settings for a module: a context to enter around the compiler.

    Some pipelines copy into shared memory ahead of the use: those of ``mma`` programs, and of two
    of the three spaces on lanes that MetaSchedule has for sm_80 and newer. A copy through registers
    would be waited for at once, so that the pipeline would cost shared memory and gain nothing. TVM
    makes the copies asynchronous (``cp.async`` of 4, 8 or 16 bytes; vectors of other sizes stay as
    they are) only on request.

    ``cuda_graph``: of a network, see :func:`pruner.tune.deploy.build.build_network`.

    For GPUs without ``StorageRewrite``: that of TVM 0.27 gives a buffer the memory of another,
    which later passes may refuse: float32 sums staged where float16 operands of a tensor core lay
    ("tvm_access_ptr element type must match the source buffer"), two sums over threads in one place
    ("load_remap_.count"). Shared memory is still merged, by ``MergeSharedMemoryAllocations``.
    """
    config: dict[str, bool] = {}
    if is_gpu(target):
        config = {"tirx.disable_storage_rewrite": True}
    if is_cuda(target):
        functions = [f for _, f in module.functions_items() if type(f).__name__ == "PrimFunc"]
        config |= {"tirx.use_async_copy": True} if any(map(copies_ahead, functions)) else {}
        config |= {"relax.backend.use_cuda_graph": True} if cuda_graph else {}
    return load_tvm().tvm.transform.PassContext(config=config, instruments=instruments)


def even_vectors(module: Any) -> Any:
    """Divide long vectors of scheduled functions where their lanes are uneven.

    LLVM is slow where the number of lanes is no power of two: it widens a vector of 40 lanes to 64,
    and takes 40 s for a loop of 512 such steps that is written out. As five vectors of 8 lanes the
    same loop takes a tenth of a second.
    """
    return map_loops(module, _divided)


def _divided(loop: Any) -> Any:
    tirx, ffi = load_tvm().tirx, load_tvm().ffi
    if int(loop.kind) != VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    zero = tirx.IntImm(loop.extent.ty.dtype, 0)
    if loop.step is not None or loop.annotations or not ffi.structural_equal(loop.min, zero):
        return loop  # of a user's program: schedules make none
    lanes, whole = int(loop.extent), loop.loop_var
    part = lanes & -lanes  # the largest power of two that divides them
    if lanes <= _LONGEST or part in (lanes, *range(_SHORTEST)):
        return loop
    outer, inner = (tirx.Var(f"{whole.name}_{end}", whole.ty) for end in ("part", "lane"))
    body = replaced(loop.body, [(whole, outer * part + inner)])
    parts, of_part = (tirx.IntImm(loop.extent.ty.dtype, n) for n in (lanes // part, part))
    vector = type(loop)(inner, loop.min, of_part, VECTORIZED, body)
    return type(loop)(outer, loop.min, parts, UNROLLED, vector)


def code_bytes(path: Path) -> int:
    """Add up a 64-bit ELF's sections with instructions; refuse other files."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise PrunerError(f"{path}: no 64-bit ELF library, so its code has no size")
    table, entry, count = struct.unpack_from("<40xQ10xHH", data)
    total = 0
    for start in range(table, table + entry * count, entry):
        flags, size = struct.unpack_from("<8xQ16xQ", data, start)
        total += size if flags & _EXECUTABLE else 0
    return total


def scratch_watch(threads: int, found: list[int]) -> Sequence[Any]:
    """Make instruments of TVM's passes that append bytes of scratch memory to `found`.

    ``threads``: of a parallel loop; a buffer inside it exists once a thread.
    """

    # TVM asks the class of an instrument, not the object, for its methods
    class Instrument(load_tvm().tvm.ir.instrument.PassInstrument):  # type: ignore[misc]
        def run_after_pass(self, module: Any, info: Any) -> None:
            if str(info.name).rpartition(".")[2] == _PLANNED:
                bodies = [f.body for _, f in module.functions_items() if hasattr(f, "body")]
                found.append(sum(sum(_allocated(body, 1, threads)) for body in bodies))

    return [Instrument()]


def _allocated(stmt: Any, copies: int, threads: int) -> Iterator[int]:
    """Yield the bytes of every allocation, times the threads that make it."""
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        for part in stmt.seq:
            yield from _allocated(part, copies, threads)
    elif kind == "For":
        parallel = int(stmt.kind) == PARALLEL
        copies = min(copies * int(stmt.extent), threads) if parallel else copies
        yield from _allocated(stmt.body, copies, threads)
    elif kind in ("AttrStmt", "While"):
        yield from _allocated(stmt.body, copies, threads)
    elif kind == "IfThenElse":
        yield from _allocated(stmt.then_case, copies, threads)
        if stmt.else_case is not None:
            yield from _allocated(stmt.else_case, copies, threads)
    elif kind == "AllocBuffer":
        dtype, _, lanes = str(stmt.buffer.dtype).partition(_LANES)
        elements = prod(int(extent) for extent in stmt.buffer.shape) * int(lanes or 1)
        yield copies * elements * dtype_bytes(dtype)
