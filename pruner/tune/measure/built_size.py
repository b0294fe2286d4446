"""Code and scratch memory of a built program."""

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from pruner.arrays import dtype_bytes
from pruner.errors import PrunerError
from pruner.tune.tvm_import import load_tvm

_PLANNED = "StorageRewrite"  # TVM's pass behind which allocations share memory and move no more
_EXECUTABLE = 4  # SHF_EXECINSTR of an ELF section
_PARALLEL = 1  # of tirx.ForKind
_LANES = "x"  # float32x16: a vector


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


class ScratchWatch:
    """Reads the scratch memory of the functions that TVM compiles in its context.

    ``threads``: of a parallel loop; a buffer inside it exists once a thread.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self.scratch_bytes = threads, 0
        watch = self

        # TVM asks the class of an instrument, not the object, for its methods
        class Instrument(load_tvm().tvm.ir.instrument.PassInstrument):  # type: ignore[misc]
            def run_after_pass(self, module: Any, info: Any) -> None:
                if str(info.name).rpartition(".")[2] == _PLANNED:
                    watch.read(module)

        self.instrument = Instrument()

    def read(self, module: Any) -> None:
        """Add up the allocations of a module's functions."""
        bodies = [f.body for _, f in module.functions_items() if hasattr(f, "body")]
        self.scratch_bytes = sum(sum(_allocated(body, 1, self._threads)) for body in bodies)


def _allocated(stmt: Any, copies: int, threads: int) -> Iterator[int]:
    """Yield the bytes of every allocation, times the threads that make it."""
    kind = type(stmt).__name__
    if kind == "SeqStmt":
        for part in stmt.seq:
            yield from _allocated(part, copies, threads)
    elif kind == "For":
        parallel = int(stmt.kind) == _PARALLEL
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
