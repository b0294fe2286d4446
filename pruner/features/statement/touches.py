"""Per-loop memory of what was touched so far (``for_touch_regions_`` of feature.cc).

The original walks the stores in program order and appends, for every loop around a store and every
buffer the store touches, how much of the buffer one run of the loop touches. Reuse looks at what
earlier stores left there, so the order of stores matters. And it keys its tables by the address of
a loop's node, which for GPU indices is a temporary that the allocator hands out again: a defect of
feature.cc that the released models have learned with, followed by :func:`number_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, Mask
from pruner.features.statement.accesses import READ, Access
from pruner.program.nests import Loop, LoopNests

NodeKeys = Literal["recycled", "unique"]


@dataclass(frozen=True, slots=True)
class LoopNumber:
    """The row of a loop in the table; ``forgets``: where the row starts empty all the same."""

    row: int
    forgets: Mask | np.bool_ = field(default_factory=lambda: np.bool_(False))


def number_loops(nests: LoopNests, node_keys: NodeKeys = "recycled") -> dict[Loop, LoopNumber]:
    """A row of the touch table for every loop.

    With ``recycled`` keys a loop bound to a GPU index takes the row of the last such loop that was
    closed, as freed nodes are handed out again, last freed first. Where the allocator did not hand
    it out (:func:`_refills`), the row is forgotten. ``unique``: every loop has a row of its own.
    """
    numbers: dict[Loop, LoopNumber] = {}
    free: list[int] = []
    rows = 0
    refills = _refills(nests)
    opened: tuple[Loop, ...] = ()
    for store in nests.stores:
        kept = _common(opened, store.loops)
        if node_keys == "recycled":  # closing goes from the innermost loop outwards
            free += [numbers[loop].row for loop in reversed(opened[kept:]) if loop.is_bound]
        for depth in range(kept, len(store.loops)):
            loop = store.loops[depth]
            if loop.is_bound and free:
                inner = any(around.is_bound for around in store.loops[:depth])
                numbers[loop] = LoopNumber(free.pop(), inner & refills)
            else:
                numbers[loop] = LoopNumber(rows)
                rows += 1
        opened = store.loops
    return numbers


def _common(a: Sequence[Loop], b: Sequence[Loop]) -> int:
    """How many outer loops two stores share."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        count += 1
    return count


def _refills(nests: LoopNests) -> Mask | np.bool_:
    """Where the allocator's short list runs out at a nested thread loop.

    After simplification glibc's per-thread list holds one node for every ordinary loop of the
    kernel's outermost stage, and one more; block, virtual thread and thread take three. With two
    such loops the next request refills the list, and the node freed afterwards is not the next one
    handed out. Found on the golden features, where 153 of 157 programs that can tell agree; with
    several kernels the list's length is not known.
    """
    kernels = [key for key, a in nests.allocations.items() if not a.loops]
    if len(kernels) != 1:
        return np.bool_(False)
    store = next(s for s in reversed(nests.stores) if s.buffer.key == kernels[0])
    ordinary = [x for x in (store.reduction or store).loops if not x.is_bound]
    return np.equal(sum(np.not_equal(loop.extent, 1) * 1 for loop in ordinary), 2)


class _BufferTouches:
    """Entries of one buffer at every loop."""

    def __init__(self, num_loops: int, num: int) -> None:
        self.count = np.zeros(num_loops, np.int64)
        self.first = np.zeros((num_loops, num))
        self.least = np.full((num_loops, num), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What the loops around a store have touched when it was met, outermost first.

    ``all_bytes``, ``kept_bytes``, ``read_bytes``, ``entry_bytes``: see :class:`TouchTable`, [L, N];
    ``first``, ``least``: elements of each access's buffer that the first of its touches takes, and
    the smallest one, [A, L, N]; ``shared``: where the buffer was touched before, too, [A, L, N].
    """

    all_bytes: Floats
    kept_bytes: Floats
    read_bytes: Floats
    entry_bytes: Floats
    first: Floats
    least: Floats
    shared: Mask

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """Of the programs of all parts, one after another."""
        names = [field.name for field in fields(Seen)]
        together = (np.concatenate([getattr(x, name) for x in parts], -1) for name in names)
        return parts[0] if len(parts) == 1 else Seen(**dict(zip(names, together, strict=True)))


class TouchTable:
    """Running totals by loop: [num_loops, N]."""

    def __init__(self, num_loops: int, num: int) -> None:
        self.all_bytes = np.zeros((num_loops, num))
        self.kept_bytes = np.zeros((num_loops, num))  # as all_bytes, but never forgotten
        self.read_bytes = np.zeros((num_loops, num))
        self.entry_bytes = np.zeros((num_loops, num))
        self._buffers: dict[int, _BufferTouches] = {}
        self._shape = (num_loops, num)

    def forget(self, row: int, where: NDArray[np.bool_] | np.bool_) -> None:
        """Drop the totals of loop ``row`` for the programs ``where``."""
        for totals in (self.all_bytes, self.read_bytes, self.entry_bytes):
            totals[row] = np.where(where, 0.0, totals[row])

    def record(self, rows: NDArray[np.int64], access: Access, elements: Floats) -> None:
        """Append one access: ``elements`` [L, N] touched elements per loop in ``rows``."""
        size = access.bytes_per_element
        self.all_bytes[rows] += elements * size
        self.kept_bytes[rows] += elements * size
        self.entry_bytes[rows] += size
        if access.kind == READ:
            self.read_bytes[rows] += elements * size
        table = self._buffers.setdefault(access.buffer.key, _BufferTouches(*self._shape))
        fresh = rows[table.count[rows] == 0]
        table.first[fresh] = elements[table.count[rows] == 0]
        table.least[rows] = np.minimum(table.least[rows], elements)
        table.count[rows] += 1

    def seen(self, rows: NDArray[np.int64], accesses: Sequence[Access]) -> Seen:
        """What the loops ``rows`` have touched so far, and how of the buffers of ``accesses``."""
        entries = [self._buffers[access.buffer.key] for access in accesses]
        shape = (len(entries), len(rows), self._shape[1])
        shared = np.array([entry.count[rows] > 1 for entry in entries])
        return Seen(
            all_bytes=self.all_bytes[rows],
            kept_bytes=self.kept_bytes[rows],
            read_bytes=self.read_bytes[rows],
            entry_bytes=self.entry_bytes[rows],
            first=np.array([entry.first[rows] for entry in entries]),
            least=np.array([entry.least[rows] for entry in entries]),
            shared=np.broadcast_to(shared[:, :, None], shape),
        )
