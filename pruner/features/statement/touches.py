"""Record the touches of every loop (``for_touch_regions_`` of feature.cc).

The original walks the stores in program order and appends, for every loop around a store and every
buffer the store touches, how much of the buffer one run of the loop touches. Reuse reads the
touches of earlier stores, so the order of stores matters. And it keys its tables by the address of
a loop's node, which for GPU indices is a temporary that the allocator hands out again: a defect of
feature.cc that the released models were trained with, followed by :func:`number_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from pruner.arrays import Floats, Mask
from pruner.features.statement.accesses import READ, Access
from pruner.program.nests import Loop, LoopNests

NodeKeys = Literal["recycled", "unique"]


@dataclass(frozen=True, slots=True)
class LoopNumber:
    """The table row of a loop.

    ``forgets``: where the row starts empty although it is recycled.
    """

    row: int
    forgets: Mask | np.bool_ = field(default_factory=lambda: np.bool_(False))


def number_loops(nests: LoopNests, node_keys: NodeKeys = "recycled") -> dict[Loop, LoopNumber]:
    """Return a row of the touch table for every loop.

    With ``recycled`` keys a loop bound to a GPU index takes the row of the last such loop that was
    closed, as freed nodes are handed out again, last freed first. Where the allocator did not hand
    it out (:func:`_refills`), the row is emptied. ``unique``: every loop has a row of its own.
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
            # Ordinary loops are nodes of the program and live on; only the temporaries of GPU
            # indices are freed.
            if loop.is_bound and free:
                inner = any(around.is_bound for around in store.loops[:depth])
                numbers[loop] = LoopNumber(free.pop(), inner & refills)
            else:
                numbers[loop] = LoopNumber(rows)
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


def _refills(nests: LoopNests) -> Mask | np.bool_:
    """Return where the allocator's free list runs out at a thread loop.

    After simplification glibc's per-thread list holds one node for every ordinary loop of the
    kernel's outermost stage, and one more; block, virtual thread and thread take three. With two
    such loops the next request refills the list, and the node freed afterwards is not the next to
    be handed out. Found on the golden features, where 153 of the 157 programs that can decide it
    agree; with several kernels the list's length is unknown.
    """
    kernels = [key for key, a in nests.allocations.items() if not a.loops]
    if len(kernels) != 1:
        return np.bool_(False)
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


@dataclass(slots=True, eq=False)
class _Entry:
    """Touches of one buffer in one loop.

    ``count`` of touches; elements of the ``first`` and of the ``least``.
    """

    count: int
    first: Floats
    least: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """Touches of the L loops around a store so far, outermost first.

    ``all_bytes``, ``kept_bytes``, ``read_bytes``, ``entry_bytes``: see :class:`TouchTable`, an
    array [N] a loop; ``first``, ``least``: elements of each access's buffer in its first touch and
    in its smallest, by access and loop; ``shared``: where the buffer was touched before, too, [A,
    L, N].
    """

    all_bytes: Sequence[Floats]
    kept_bytes: Sequence[Floats]
    read_bytes: Sequence[Floats]
    entry_bytes: Sequence[Floats]
    first: Sequence[Sequence[Floats]]
    least: Sequence[Sequence[Floats]]
    shared: Mask

    def among(self, rows: Sequence[int], levels: int) -> Seen:
        """Return the touches in ``rows`` of ``levels`` loops; zeros in other loops."""
        if len(rows) == levels:
            return self

        accesses, _, num = self.shared.shape

        def placed(name: str) -> Any:
            lead = (accesses,) if name in ("first", "least", "shared") else ()
            out = np.zeros((*lead, levels, num), bool if name == "shared" else np.float64)
            out[..., rows, :] = np.reshape(getattr(self, name), (*lead, len(rows), num))
            return out

        return Seen(**{field.name: placed(field.name) for field in fields(Seen)})

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """Join the programs of all parts."""
        if len(parts) == 1:
            return parts[0]

        def all_of(name: str) -> Any:
            return np.concatenate([getattr(x, name) for x in parts], -1)

        return Seen(**{field.name: all_of(field.name) for field in fields(Seen)})


class TouchTable:
    """Running totals by loop.

    Bytes of all touches (``all_bytes``) and of reading touches (``read_bytes``), and one element of
    each touch (``entry_bytes``); ``kept_bytes`` are as ``all_bytes``, but never dropped.
    """

    def __init__(self, num_loops: int, num: int) -> None:
        self._num, nothing = num, np.zeros(num)
        self._totals = [_Totals(nothing, nothing, nothing, nothing) for _ in range(num_loops)]
        self._buffers: dict[int, dict[int, _Entry]] = {}

    def forget(self, row: int, where: Mask | np.bool_) -> None:
        """Drop the totals of loop ``row`` for the programs ``where``."""
        totals = self._totals[row]
        totals.all_bytes = np.where(where, 0.0, totals.all_bytes)
        totals.read_bytes = np.where(where, 0.0, totals.read_bytes)
        totals.entry_bytes = np.where(where, 0.0, totals.entry_bytes)

    def record(self, rows: Sequence[int], access: Access, elements: Floats) -> None:
        """Append one access: ``elements`` [L, N] touched per loop in ``rows``."""
        size = access.bytes_per_element
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

    def seen(self, rows: Sequence[int], accesses: Sequence[Access]) -> Seen:
        """Return the touches of loops ``rows``, overall and by buffer."""
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
