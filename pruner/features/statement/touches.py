"""Record how much of a buffer a loop touches (``for_touch_regions_``).

The original keys its tables by the address of a loop's node, which for GPU indices is a temporary
that is handed out again: a defect of the released models, followed by :func:`number_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from pruner.arrays import Floats, Mask
from pruner.features.statement.accesses import READ, Access
from pruner.program.index.affine import Truth, any_nonzero
from pruner.program.nests import BufferStore, Loop, LoopNests

NodeKeys = Literal["recycled", "unique"]
Rows = slice | list[int]  # of loops; a slice is several times faster
LoopRow = tuple[int, Truth]  # and where the row starts empty although it is recycled


def number_loops(nests: LoopNests, node_keys: NodeKeys = "recycled") -> dict[Loop, LoopRow]:
    """Return each loop's row of the touch table, and where it starts empty.

    With ``recycled`` keys a loop bound to a GPU index takes the row of the last such loop that was
    closed, as freed nodes are handed out again, last freed first. Where the allocator did not hand
    it out (:func:`_refills`), the row is emptied. ``unique``: every loop has a row of its own.
    """
    numbers: dict[Loop, LoopRow] = {}
    free: list[int] = []
    rows = 0
    refills = _refills(nests)
    opened: tuple[Loop, ...] = ()
    for store in nests.stores:
        kept = _common(opened, store.loops)
        if node_keys == "recycled":  # closing goes from the innermost loop outwards
            free += [numbers[loop][0] for loop in reversed(opened[kept:]) if loop.is_bound]
        for depth in range(kept, len(store.loops)):
            loop = store.loops[depth]
            # Ordinary loops are nodes of the program; only temporaries of GPU indices are freed.
            if loop.is_bound and free:
                inner = any(around.is_bound for around in store.loops[:depth])
                numbers[loop] = free.pop(), inner & refills
            else:
                numbers[loop] = rows, False
                rows += 1
        opened = store.loops
    return numbers


def _common(a: Sequence[Loop], b: Sequence[Loop]) -> int:
    """Return the number of outer loops that two stores share."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        count += 1
    return count


def _refills(nests: LoopNests) -> Truth:
    """Return where the allocator's free list runs out at a thread loop.

    glibc's per-thread list holds one node for every ordinary loop of the outermost stage, and one
    more; block, virtual thread and thread take three. With two such loops the next request refills
    the list. 153 of the 157 golden programs that can decide it agree.
    """
    kernels = [key for key, a in nests.allocations.items() if not a.loops]
    if len(kernels) != 1:
        return False
    # The kernel's last store has the loops of its outermost stage.
    store = next(s for s in reversed(nests.stores) if s.buffer.key == kernels[0])
    ordinary = [x for x in (store.reduction or store).loops if not x.is_bound]
    return np.equal(sum(np.not_equal(loop.extent, 1) * 1 for loop in ordinary), 2)


@dataclass(slots=True, eq=False)
class _Totals:
    """Totals of one loop, [N] each: see :class:`TouchTable`."""

    all_bytes: Floats
    kept_bytes: Floats
    read_bytes: Floats
    entry_bytes: Floats

    def forget(self, where: Truth) -> None:
        for name in ("all_bytes", "read_bytes", "entry_bytes"):
            setattr(self, name, np.where(where, 0.0, getattr(self, name)))


@dataclass(slots=True, eq=False)
class _Entry:
    """Touches of one buffer in one loop: ``count``, elements of ``first`` and ``least``."""

    count: int
    first: Floats
    least: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """Touches of the L loops around a store so far, outermost first.

    ``*_bytes``: see :class:`TouchTable`, [N] a loop; ``first``, ``least``: elements of each
    access's buffer in its first and its smallest touch; ``shared``: touched before, too, [A, L, N].
    """

    all_bytes: Sequence[Floats]
    kept_bytes: Sequence[Floats]
    read_bytes: Sequence[Floats]
    entry_bytes: Sequence[Floats]
    first: Sequence[Sequence[Floats]]
    least: Sequence[Sequence[Floats]]
    shared: Mask

    @staticmethod
    def joined(parts: Sequence[tuple[Seen, Rows, slice]], levels: int, num: int) -> Seen:
        """Join the touches of parts at the places of their loops and programs."""
        if len(parts) == 1:
            return parts[0][0]
        accesses = len(parts[0][0].shared)

        def all_of(name: str) -> Any:
            lead = (accesses,) if name in ("first", "least", "shared") else ()
            out = np.zeros((*lead, levels, num), bool if name == "shared" else np.float64)
            for seen, rows, programs in parts:
                shape = (*lead, len(seen.all_bytes), programs.stop - programs.start)
                out[..., rows, programs] = np.reshape(getattr(seen, name), shape)
            return out

        return Seen(**{field.name: all_of(field.name) for field in fields(Seen)})


class TouchTable:
    """Touches of one nest's stores, recorded in program order.

    Totals by loop: bytes of all (``all_bytes``; ``kept_bytes``, never dropped) and of reading
    touches (``read_bytes``), and one element of each touch (``entry_bytes``).
    """

    def __init__(self, nests: LoopNests, node_keys: NodeKeys = "recycled") -> None:
        self._num, nothing = nests.num_programs, np.zeros(nests.num_programs)
        self._row_of = number_loops(nests, node_keys)
        self._totals = [_Totals(nothing, nothing, nothing, nothing) for _ in self._row_of]
        self._buffers: dict[int, dict[int, _Entry]] = {}
        self._entered: set[Loop] = set()

    def record(
        self, store: BufferStore, loops: Sequence[Loop], touched: Sequence[tuple[Access, Floats]]
    ) -> Seen:
        """Append accesses with their elements in ``loops`` [L, N]; return the touches so far."""
        # A row is emptied where the allocator made a fresh node (see `number_loops`).
        for loop in store.loops:
            row, fresh = self._row_of[loop]
            if loop not in self._entered and any_nonzero(fresh):
                self._totals[row].forget(fresh)
            self._entered.add(loop)
        rows = [self._row_of[loop][0] for loop in loops]
        for access, elements in touched:
            self._append(rows, access, elements)
        return self._seen(rows, [access for access, _ in touched])

    def _append(self, rows: Sequence[int], access: Access, elements: Floats) -> None:
        """Append one access: ``elements`` [L, N] touched per loop in ``rows``."""
        size = access.buffer.bytes_per_element
        entries = self._buffers.setdefault(access.buffer.key, {})
        for row, touched, moved in zip(rows, elements, elements * size, strict=True):
            totals = self._totals[row]
            # Totals are shared as long as they are equal, which callers test by identity.
            alike = totals.kept_bytes is totals.all_bytes
            totals.all_bytes = totals.all_bytes + moved
            totals.kept_bytes = totals.all_bytes if alike else totals.kept_bytes + moved
            totals.entry_bytes = totals.entry_bytes + size
            if access.kind == READ:
                totals.read_bytes = totals.read_bytes + moved
            entry = entries.get(row)
            if entry is None:
                entries[row] = _Entry(1, touched, touched)
            else:
                entry.count += 1
                entry.least = np.minimum(entry.least, touched)

    def _seen(self, rows: Sequence[int], accesses: Sequence[Access]) -> Seen:
        totals = [self._totals[row] for row in rows]
        entries = [[self._buffers[access.buffer.key][row] for row in rows] for access in accesses]
        shared = np.array([[entry.count > 1 for entry in some] for some in entries])
        return Seen(
            all_bytes=[one.all_bytes for one in totals],
            kept_bytes=[one.kept_bytes for one in totals],
            read_bytes=[one.read_bytes for one in totals],
            entry_bytes=[one.entry_bytes for one in totals],
            first=[[entry.first for entry in some] for some in entries],
            least=[[entry.least for entry in some] for some in entries],
            shared=np.broadcast_to(shared[:, :, None], (*shared.shape, self._num)),
        )
