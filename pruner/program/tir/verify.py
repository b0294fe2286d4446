"""What TVM's ``VerifyGPUCode`` postprocessor accepts, for N candidates at once.

Limits on threads a block, on shared memory and on the thread extents a schedule rule asks for
(src/s_tir/meta_schedule/postproc/verify_gpu_code.cc, src/s_tir/analysis/verify_gpu_code.cc). Local
memory is not limited there, and vectors are never wider than 16 bytes in these spaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import IntLike, Mask, Verdicts, dtype_bytes
from pruner.program.nests import THREADS, Mark, Scope
from pruner.program.tir.lower import buffer_places
from pruner.program.tir.tree import Block, LoopNode, Tree, TreeNode

THREADS_LOW = "meta_schedule.thread_extent_low_inclusive"
THREADS_HIGH = "meta_schedule.thread_extent_high_inclusive"
_STAGES = "software_pipeline_stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class TirLimits:
    """Limits of one thread block: bytes of shared memory, threads."""

    shared_bytes: int
    threads: int

    @staticmethod
    def of_target(target: Any) -> TirLimits:
        """From the attributes of a TVM target."""
        return TirLimits(
            shared_bytes=int(target.attrs["max_shared_memory_per_block"]),
            threads=int(target.attrs["max_threads_per_block"]),
        )


def verify_gpu_code(tree: Tree, limits: TirLimits) -> Verdicts:
    """Which of the N programs of a tree are accepted, bool [N]."""
    num = tree.num_programs
    out = np.ones(num, bool)
    shared = _shared_bytes(tree, num)
    for kernel in tree.root.body:
        out &= _threads_fit(tree, kernel, num, limits.threads)
        out &= shared.get(kernel, np.zeros(num)) <= limits.shared_bytes
        out &= all(_pipeline_fits(loop) for loop in _loops(kernel))
    return out


def _threads_fit(tree: Tree, kernel: TreeNode, num: int, most: int) -> Mask:
    """Every index has one extent in the kernel, and their product is in range."""
    extents: dict[Mark | None, IntLike] = {}
    out = np.ones(num, bool)
    for loop in _loops(kernel):
        if loop.mark in THREADS:
            out &= np.equal(extents.setdefault(loop.mark, loop.extent), loop.extent)
    out &= _product(list(extents.values())) <= most
    for block in tree.blocks(kernel):
        if THREADS_LOW in block.annotations and THREADS_HIGH in block.annotations:
            inner = {x.mark: x.extent for x in tree.path(block) if x.mark in extents}
            threads = _product(list(inner.values()))
            out &= (int(str(block.annotations[THREADS_LOW])) <= threads) & (
                threads <= int(str(block.annotations[THREADS_HIGH]))
            )
    return out


def _product(extents: list[IntLike]) -> NDArray[np.int64]:
    out = np.ones((), np.int64)
    for extent in extents:
        out = out * extent
    return np.asarray(out)


def _loops(node: TreeNode) -> list[LoopNode]:
    if isinstance(node, Block):
        return []
    return [node, *(loop for child in node.body for loop in _loops(child))]


def _shared_bytes(tree: Tree, num: int) -> dict[TreeNode, NDArray[np.int64]]:
    """Shared memory of every kernel (a child of the root)."""
    out: dict[TreeNode, NDArray[np.int64]] = {}
    for key, place in buffer_places(tree).items():
        buffer = tree.buffers[key]
        if buffer.scope is not Scope.SHARED or place.loop is None:
            continue
        size: IntLike = dtype_bytes(buffer.dtype) * _versions(place.loop)
        for region in place.box:
            size = size * (region.hi - region.lo + 1)
        kernel = (*tree.path(place.loop), place.loop)[0]
        out[kernel] = out.get(kernel, np.zeros(num, np.int64)) + size
    return out


def _pipeline_fits(loop: LoopNode) -> bool:
    """A software pipeline names the stage of every statement of its loop."""
    stages = loop.annotations.get(_STAGES)
    return stages is None or len(stages) == len(loop.body)  # type: ignore[arg-type]


def _versions(loop: LoopNode) -> int:
    """Copies of a buffer that a software pipeline keeps: from the stage that fills it to the last
    that reads it (``ComputeBufferVersions``; fetches are of the first stage)."""
    stages = loop.annotations.get(_STAGES)
    if stages is None:
        return 1
    numbers = [int(stage) for stage in stages]  # type: ignore[attr-defined]
    return max(numbers) - min(numbers) + 1
