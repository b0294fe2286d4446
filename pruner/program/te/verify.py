"""Which programs a GPU can take, before anything is lowered: what ``VerifyGPUCode`` would say.

TVM rejects a kernel whose shared or local memory, threads a block, virtual threads or vector
accesses exceed the device's limits, or whose stages bind one thread index to different extents
(src/tir/analysis/verify_gpu_code.cc, after the passes that Ansor's feature extraction runs:
src/auto_scheduler/feature.cc). The same quantities follow from the loop nests, for N candidates at
once. Programs without GPU indices (CPU targets) are always legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import IntLike, Mask
from pruner.program.dag.expr import Binary, Call, Expr, Load, loads, walk
from pruner.program.device import GpuDevice
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.regions import evaluate_index
from pruner.program.te.bounds import LOCAL, SHARED
from pruner.program.te.lower import Allocation, LoopNests, NestLoop, Store
from pruner.program.te.schedule import FuseRelation, Loop, SplitRelation, StageState

_INDEX_BYTES = 4  # indices are int32 by the time they are checked, and their lanes count too
UNROLLED_VTHREADS = 16  # fewer virtual threads are unrolled and never counted
_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
Simplifier = Literal["official", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Limits of one thread block; bytes are of one block, vectors of one access of one thread."""

    shared_bytes: int
    local_bytes: int
    threads: int
    vthreads: int
    vector_bytes: int

    @staticmethod
    def of_device(device: GpuDevice) -> GpuLimits:
        """What TVM's targets derive from a device: local memory has no limit of its own (it
        spills), a quarter of a warp is the largest virtual thread."""
        return GpuLimits(
            vector_bytes=device.vector_bytes,
            shared_bytes=device.shared_bytes_per_block,
            local_bytes=np.iinfo(np.int32).max,
            threads=device.max_threads_per_block,
            vthreads=device.warp_size // 4,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUse:
    """What one kernel of N programs uses; every field is [N].

    ``vthreads`` counts virtual threads that stay a loop (16 or more), 1 otherwise;
    ``same_threads``: all stages agree on the extents of the thread indices.
    """

    shared_bytes: NDArray[np.int64]
    local_bytes: NDArray[np.int64]
    threads: NDArray[np.int64]
    vthreads: NDArray[np.int64]
    vector_bytes: NDArray[np.int64]
    same_threads: Mask

    def within(self, limits: GpuLimits) -> Mask:
        """Where the kernel is accepted."""
        out: Mask = self.same_threads.copy()
        for name in ("shared_bytes", "local_bytes", "threads", "vthreads", "vector_bytes"):
            out &= getattr(self, name) <= getattr(limits, name)
        return out


def legal(nests: LoopNests, limits: GpuLimits, *, simplifier: Simplifier = "official") -> Mask:
    """Which of N programs the check accepts, bool [N].

    ``simplifier``: whose rules decide which vector loops survive lowering; ``official`` is the
    release that made TenSet's data and the checkpoints, ``later`` TVM 0.19.
    """
    out = np.ones(nests.num_programs, bool)
    for use in kernel_uses(nests, simplifier=simplifier):
        out &= use.within(limits)
    return out


def kernel_uses(nests: LoopNests, *, simplifier: Simplifier = "official") -> list[KernelUse]:
    """What every kernel of the programs uses, in program order."""
    kernels: dict[int, list[Store]] = {}
    for store in nests.stores:
        if any(loop.is_thread for loop in store.loops):
            kernels.setdefault(id(store.loops[0].var), []).append(store)
    return [_kernel_use(nests, first, stores, simplifier) for first, stores in kernels.items()]


def _kernel_use(
    nests: LoopNests, first: int, stores: list[Store], simplifier: Simplifier
) -> KernelUse:
    num = nests.num_programs
    loops = {id(loop.var): loop for store in stores for loop in store.loops}
    threads, same = _threads(list(loops.values()), num)
    inside = [a for a in nests.allocations.values() if a.loops and id(a.loops[0].var) == first]
    vthreads = [loop for loop in loops.values() if loop.mark == "vthread"]
    copies = {id(loop.var): _touched(nests, stores, loop.var) for loop in vthreads}
    memory = {rank: np.zeros(num, np.int64) for rank in (SHARED, LOCAL)}
    for allocation in inside:
        rank = nests.bounds.scope_rank[allocation.stage.key]
        if rank in memory:
            memory[rank] += _bytes(allocation, copies, num)
    virtual = np.ones(num, np.int64)
    for loop in vthreads:
        kept = af.where(np.greater_equal(loop.extent, UNROLLED_VTHREADS), loop.extent, 1)
        virtual = np.maximum(virtual, kept)
    vector = np.zeros(num, np.int64)
    for store in stores:
        vector = np.maximum(vector, _vector_bytes(nests, store, simplifier))
    return KernelUse(
        shared_bytes=memory[SHARED],
        local_bytes=memory[LOCAL],
        threads=threads,
        vthreads=virtual,
        vector_bytes=vector,
        same_threads=same,
    )


def _threads(loops: list[NestLoop], num: int) -> tuple[NDArray[np.int64], Mask]:
    """Threads a block, and where every stage binds the same extents."""
    total, same = np.ones(num, np.int64), np.ones(num, bool)
    for mark in _THREADS:
        extents = [loop.extent for loop in loops if loop.mark == mark]
        if extents:
            total = total * extents[0]
        for other in extents[1:]:
            same &= np.equal(other, extents[0])
    return total, same


def _bytes(allocation: Allocation, copies: dict[int, dict[int, Mask]], num: int) -> IntLike:
    """Size of one buffer; every virtual thread whose index reaches it has its own copy."""
    size: IntLike = np.full(num, _dtype_bytes(allocation.stage.dtype), np.int64)
    for extent in allocation.extents:
        size = size * extent
    for loop in allocation.loops:
        touched = copies.get(id(loop.var), {}).get(allocation.stage.key)
        if touched is not None:
            size = size * np.where(touched, loop.extent, 1)
    return size


def _dtype_bytes(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(int(digits) // 8, 1) if digits else 1


def _touched(nests: LoopNests, stores: list[Store], var: LoopVar) -> dict[int, Mask]:
    """Buffers that hold something else in every iteration of ``var``, by stage key.

    A buffer is touched when the variable is in the index or the value of a store to it, or when it
    is computed from a touched buffer (``VarTouchedAnalysis``).
    """
    found: dict[int, Mask] = {}
    uses = [(store.stage.key, *_direct_uses(nests, store, var)) for store in stores]
    for _ in range(len(stores)):  # effects travel one store further with every pass
        before = {key: mask.copy() for key, mask in found.items()}
        for key, direct, sources in uses:
            mask = direct.copy()
            for source in sources:
                mask |= found.get(source, False)
            found[key] = found.get(key, np.zeros(len(mask), bool)) | mask
        if before.keys() == found.keys() and all((found[k] == before[k]).all() for k in found):
            break
    return found


def _direct_uses(nests: LoopNests, store: Store, var: LoopVar) -> tuple[Mask, set[int]]:
    """Where a store's index or value holds ``var`` itself, and which buffers it reads."""
    num = nests.num_programs
    mask = np.zeros(num, bool)
    for index in _relative(nests, store.stage.key, store.roots[: len(store.stage.axes)]):
        mask |= mentions(index, var, num)
    sources = set()
    for load in loads(store.value):
        sources.add(load.stage)
        for index in _load_indices(nests, store, load):
            mask |= mentions(index, var, num)
    return mask, sources


def _load_indices(nests: LoopNests, store: Store, load: Load) -> tuple[Affine, ...]:
    if load.stage == store.stage.key and not load.indices:
        indices = store.roots[: len(store.stage.axes)]
    else:
        values = dict(enumerate(store.roots))
        indices = tuple(evaluate_index(index, values) for index in load.indices)
    return _relative(nests, load.stage, indices)


def _relative(nests: LoopNests, key: int, indices: Sequence[Affine]) -> tuple[Affine, ...]:
    """Indices counted from the start of the buffer, which lies inside some of the loops."""
    axes = nests.schedule.pool[key].axes
    starts = [nests.bounds.mins.get(axis, Affine()) for axis in axes]
    return tuple(af.add(index, start, -1) for index, start in zip(indices, starts, strict=True))


def mentions(index: Affine, var: LoopVar, num: int) -> Mask:
    """Where an index uses a loop variable, bool [num]."""
    out = np.zeros(num, bool)
    for t in index.terms:
        active = np.not_equal(t.coef, 0)
        if isinstance(t.index, Affine):
            out |= mentions(t.index, var, num) & active
        elif t.index is var:
            out |= active
    return out


def _vector_bytes(nests: LoopNests, store: Store, simplifier: Simplifier) -> NDArray[np.int64]:
    """Bytes of the widest vector access of a store; 0 where there is none."""
    num = nests.num_programs
    out = np.zeros(num, np.int64)
    width = max([_INDEX_BYTES, *(_dtype_bytes(load.dtype) for load in loads(store.value))])
    width = max(width, _dtype_bytes(store.stage.dtype))
    for loop in store.loops:
        if loop.mark == "vectorize":
            wide = np.greater(loop.extent, 1) & ~_scalar(store, loop.var, num, simplifier)
            out = np.maximum(out, np.where(wide, np.multiply(loop.extent, width), 0))
    return out


def _scalar(store: Store, var: LoopVar, num: int, simplifier: Simplifier) -> Mask:
    """Where lowering gives up vectors: a lazy condition, or a guard, differs between lanes."""
    out = _guarded_lanes(store.stage, var, simplifier) & np.ones(num, bool)
    values = dict(enumerate(store.roots))
    for node in walk(store.value):
        if isinstance(node, Call) and node.name == "if_then_else":
            for side in _compared(node.args[0]):
                out |= mentions(evaluate_index(side, values), var, num)
    return out


def _guarded_lanes(stage: StageState, var: LoopVar, simplifier: Simplifier) -> Mask | np.bool_:
    """Where tiles do not divide what they tile and the guard of the store holds the lane.

    The official release keeps the lane in every such guard. Later versions of TVM rewrite
    ``x * lanes + lane < extent`` to ``x < extent / lanes`` where that is exact, and stay vectors.
    """
    ragged: Mask | np.bool_ = np.bool_(False)
    whole: Mask | np.bool_ = np.bool_(False)
    current: Loop | None = next((leaf for leaf in stage.leaves if leaf.var is var), None)
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation) and current in (rel.inner, rel.outer):
            if rel.inner.var is var and simplifier == "later":
                whole = np.equal(np.mod(rel.parent.extent, rel.inner.extent), 0)
            current = rel.parent
            ragged = ragged | _is_ragged(stage, current)
        elif isinstance(rel, FuseRelation) and current is rel.fused:
            current = rel.outer
    return ragged & ~whole


def _is_ragged(stage: StageState, loop: Loop) -> Mask | np.bool_:
    """Where a loop was split into tiles that do not divide it, at any depth."""
    out: Mask | np.bool_ = np.bool_(False)
    for rel in stage.relations:
        if isinstance(rel, SplitRelation) and rel.parent is loop:
            out = np.not_equal(rel.inner.extent * rel.outer.extent, rel.parent.extent)
            return out | _is_ragged(stage, rel.inner) | _is_ragged(stage, rel.outer)
    return out


def _compared(condition: Expr) -> list[Expr]:
    """Integer expressions that a condition compares."""
    return [
        side
        for node in walk(condition)
        if isinstance(node, Binary) and node.op in ("lt", "le", "gt", "ge", "eq", "ne")
        for side in (node.a, node.b)
        if side.dtype.startswith(("int", "uint"))
    ]
