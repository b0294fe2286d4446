"""Compute shared memory of N GPU programs as TVM's check allocates it.

Static buffers are summed up. Dynamic buffers share one allocation: ``StorageRewrite``
(src/tirx/transform/storage_rewrite.cc) gives a buffer the memory of a free buffer,
``MergeSharedMemoryAllocations`` (src/s_tir/transform) also that of several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pruner.arrays import Ints, dtype_bytes
from pruner.errors import UnsupportedProgram
from pruner.program.nests import Buffer, Scope
from pruner.program.tir.layouts import aligned_elements
from pruner.program.tir.pipeline import buffer_versions
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.tree import Block, LoopNode, Place, Tree, TreeNode

_MATCH_RANGE = 16  # a free buffer may be this many times too large or too small


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A buffer in shared memory: bytes [N]; blocks of first store and last use."""

    buffer: Buffer
    size: Ints
    first: int
    last: int


def shared_bytes(tree: Tree) -> dict[TreeNode, tuple[Ints, Ints]]:
    """Return static and dynamic bytes by kernel; raise `UnsupportedProgram` if unplanned."""
    kernels: dict[LoopNode, list[_Staged]] = {}
    blocks = list(tree.blocks())
    for key, place in buffer_scopes(tree).items():
        if tree.buffers[key].scope is Scope.SHARED and place.loop is not None:
            # A kernel is a child of the root: the outermost loop around the buffer's place.
            kernel = (*tree.path(place.loop), place.loop)[0]
            kernels.setdefault(kernel, []).append(_staged(tree, key, place, blocks))
    out: dict[TreeNode, tuple[Ints, Ints]] = {}
    for kernel, found in kernels.items():
        nothing = np.zeros(tree.num_programs, np.int64)
        static = sum((x.size for x in found if not x.buffer.is_dynamic), nothing)
        dynamic = _merged([x for x in found if x.buffer.is_dynamic], tree.num_programs)
        out[kernel] = static, dynamic
    return out


def dynamic_bytes(tree: Tree) -> Ints | None:
    """Return bytes of shared memory [N], None without dynamic buffers."""
    if not any(buffer.is_dynamic for buffer in tree.buffers):
        return None
    found = shared_bytes(tree).values()
    return np.max([static + dynamic for static, dynamic in found], axis=0) if found else None


def _staged(tree: Tree, key: int, place: Place, blocks: list[Block]) -> _Staged:
    assert place.loop is not None
    buffer = tree.buffers[key]
    users = [n for n, b in enumerate(blocks) if b.buffer == key or b.loads_of(key)]
    writer = next(b for b in blocks if b.buffer == key)
    # Only the box of one iteration of the loop is allocated (CompactBufferAllocation).
    extents = [region.hi - region.lo + 1 for region in place.box]
    # A pipelined buffer is kept several times (see `pipeline`).
    versions = buffer_versions(tree, place.loop, key)
    size = dtype_bytes(buffer.dtype) * versions * aligned_elements(writer, extents)
    sizes = np.broadcast_to(np.asanyarray(size, np.int64), tree.num_programs)
    return _Staged(buffer, sizes, users[0], users[-1])


def _merged(buffers: list[_Staged], num: int) -> Ints:
    """Return bytes of the dynamic allocation [N]: operands, then results."""
    # Operands are first written before any buffer's last use: all of them are alive at once.
    operands = [x for x in buffers if x.first <= min((y.last for y in buffers), default=0)]
    later = [x for x in buffers if x not in operands]
    total = sum((x.size for x in operands), np.zeros(num, np.int64))
    if not later:
        return total
    if len(later) > 1 or len(operands) > 2:
        raise UnsupportedProgram("shared-memory", "more buffers than operands and results")
    return total + _beyond(operands, later[0], total)


def _beyond(operands: list[_Staged], results: _Staged, total: Ints) -> Ints:
    """Return bytes that results need beyond the operands they lie over [N].

    Both passes search the least fitting free buffer. Else the first lets the largest smaller one of
    the type grow, and the second takes smaller ones together, largest first.
    """
    size = results.size
    sizes = np.stack([x.size for x in operands])
    same = np.array([x.buffer.dtype == results.buffer.dtype for x in operands])[:, None]
    large = ((sizes >= size) & (sizes <= _MATCH_RANGE * size)).any(axis=0)
    smaller = np.where(sizes < size, sizes, 0)
    # In bits, as storage_rewrite.cc compares: a truncated division by 16 of the size.
    enough = same & (8 * smaller >= 8 * size // _MATCH_RANGE)
    grown = np.where(enough, smaller, 0).max(axis=0)
    largest = smaller.max(axis=0)
    together = np.where(largest >= size, largest, smaller.sum(axis=0))
    lies_over = np.where(grown > 0, grown, np.minimum(together, size))
    return np.where(large, 0, size - lies_over)
