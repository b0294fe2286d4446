"""Find programs that TVM accepts: ``VerifyGPUCode``, and the region cover of padded results.

Limits on threads a block, shared memory, vectors, and thread extents of schedule rules
(verify_gpu_code.cc of src/s_tir/meta_schedule/postproc and of src/s_tir/analysis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pruner.arrays import IntLike, Mask, Verdicts
from pruner.program.dag.expr import Axis, Binary, Expr, Load, walk
from pruner.program.index.regions import Region, relax
from pruner.program.nests import BLOCKS, THREADS, WARP_LANES, Mark
from pruner.program.tir.pipeline import pipeline_fits
from pruner.program.tir.shared import shared_bytes
from pruner.program.tir.tree import Block, Tree, TreeNode
from pruner.program.tir.vectors import vectors_fit

THREADS_LOW = "meta_schedule.thread_extent_low_inclusive"
THREADS_HIGH = "meta_schedule.thread_extent_high_inclusive"
STATIC_BYTES = 49152  # on every CUDA device: CUDA C++ Programming Guide, compute capabilities
WARP_EXECUTION = "warp_execution"


@dataclass(frozen=True, slots=True, kw_only=True)
class TirLimits:
    """Limits of a thread block: bytes of shared memory, number of threads.

    ``shared_bytes`` may be all that a kernel can request; static buffers have less.
    """

    shared_bytes: int
    threads: int
    static_bytes: int = STATIC_BYTES

    @staticmethod
    def of_target(target: Any) -> TirLimits:
        """Read the limits from the attributes of a TVM target."""
        shared_bytes = int(target.attrs["max_shared_memory_per_block"])
        return TirLimits(
            shared_bytes=shared_bytes,
            threads=int(target.attrs["max_threads_per_block"]),
            # OpenCL has static memory alone
            static_bytes=STATIC_BYTES if str(target.kind.name) == "cuda" else shared_bytes,
        )


def verify_gpu_code(tree: Tree, limits: TirLimits) -> Verdicts:
    """Return the accepted programs of a tree, bool [N]."""
    num = tree.num_programs
    out = np.ones(num, bool)
    shared = shared_bytes(tree)
    for kernel in tree.root.body:
        out &= _threads_fit(tree, kernel, num, limits.threads)
        if kernel in shared:
            static, dynamic = shared[kernel]
            out &= (static + dynamic <= limits.shared_bytes) & (static <= limits.static_bytes)
        out &= all(pipeline_fits(tree, loop) for loop in tree.loops(kernel))
        for block in tree.blocks(kernel):
            out &= vectors_fit(tree, block)
    return out


def _threads_fit(tree: Tree, kernel: TreeNode, num: int, most: int) -> Mask:
    """Return where every index has one extent and threads are in range."""
    extents: dict[Mark | None, IntLike] = {}
    out = np.ones(num, bool)
    for loop in tree.loops(kernel):
        if loop.mark in THREADS:
            # Two loops of one axis are the same threads: different extents are an error.
            out &= np.equal(extents.setdefault(loop.mark, loop.extent), loop.extent)
    out &= math.prod(extents.values()) <= most
    for block in tree.blocks(kernel):
        if THREADS_LOW in block.annotations and THREADS_HIGH in block.annotations:
            inner = {x.mark: x.extent for x in tree.path(block) if x.mark in extents}
            if WARP_EXECUTION in block.annotations:
                inner[Mark.THREAD_X] = WARP_LANES
            threads = math.prod(inner.values())
            out &= (int(str(block.annotations[THREADS_LOW])) <= threads) & (
                threads <= int(str(block.annotations[THREADS_HIGH]))
            )
    return out


_FRAGMENT = 16  # columns that lanes hold of a row


def stages_cover(tree: Tree) -> Mask:
    """Return where padded results' epilogues let TVM move their operands, [N].

    A moved block's inputs have to be written before (region cover, src/s_tir/schedule/state.cc). A
    guard such as ``f // 256 * 16 + f % 256 // 16 < 196`` of the fused store loop is one quotient,
    ``f // 16``, where f runs over one fragment's columns and no other loop moves the rows, and TVM
    finds no region for indices that divide it once more: ``ComputeAt`` raises.
    """
    out = np.ones(tree.num_programs, bool)
    for block in tree.blocks():
        if isinstance(block.value, Load):  # a copy: nothing reads what it writes
            continue
        divided = [_slots(index) for index in block.indices if _divides(index)]
        for guard, _ in block.guards:
            rows = _slots(guard)
            if any(rows & slots for slots in divided):
                out &= ~_is_one_quotient(tree, block, rows)
    return out


def _is_one_quotient(tree: Tree, block: Block, rows: set[int]) -> Mask:
    """Return where only the block's own loop moves ``rows``, over a fragment's columns."""
    moving = {loop.var for loop in tree.path(block) if loop.mark not in BLOCKS}
    whole, columns = np.ones(tree.num_programs, bool), np.ones(tree.num_programs)
    for slot, value in enumerate(tree.values(block)):
        region, extent = relax(Region(value, 0, 0), moving), block.iters[slot].extent
        # loops that are dealt out to threads overrun
        width = np.minimum(region.hi - region.lo + 1, extent)
        if slot in rows:
            whole &= np.equal(width, extent)
        else:
            columns = columns * width
    inner = sorted(rows)[1:-1]  # fragments of a warp, which loops outside of the fused one run over
    for slot in inner:
        whole &= np.equal(block.iters[slot].extent, 1)
    return whole & (columns == _FRAGMENT)


def _slots(expr: Expr) -> set[int]:
    return {node.slot for node in walk(expr) if isinstance(node, Axis)}


def _divides(index: Expr) -> bool:
    ops = ("div", "mod", "floordiv", "floormod")
    return any(isinstance(node, Binary) and node.op in ops for node in walk(index))
