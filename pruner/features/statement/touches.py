"""Record the touches of buffers by stores and loops, and when data is reused.

``for_touch_regions_`` of feature.cc keys its tables by the address of a loop's node, which for GPU
indices is a temporary that is handed out again: a defect of the released models, followed by
:func:`number_loops`. ``ComputeReuse`` goes from the inside out: loops that move the access lengthen
the reuse distance; the first that does not starts the reuse count, which ends at the next that
does. A loop in which the buffer was touched before ends the scan with serial reuse.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats, Mask
from pruner.features.statement.array_helpers import first_row, pick_row, product_where
from pruner.program.dag.expr import Expr, Load, children
from pruner.program.index.affine import Affine, Truth, any_nonzero
from pruner.program.nests import Buffer, BufferStore, Loop, LoopNests

READ, WRITE, READ_WRITE = 0, 1, 2
Buffers = Sequence[Buffer] | Mapping[int, Buffer]  # by key


@dataclass(slots=True, eq=False)
class Access:
    """All touches of one buffer by one store.

    ``indices``: one tuple of index expressions (one per dimension) for each touch that counts; a
    buffer that is both written and read is an update, whose read has the store's own indices.
    """

    buffer: Buffer
    kind: int
    indices: list[tuple[Affine, ...]] = field(default_factory=list)


def load_indices(load: Load, store: BufferStore) -> tuple[Affine, ...]:
    """Return indices of a load in a store; updates read their own element."""
    if load.stage == store.buffer.key and not load.indices:
        return store.indices
    return tuple(map(store.sum_of, load.indices))


def _loads_in_visit_order(expr: Expr) -> Iterator[Load]:
    """Yield a load before the loads in its indices, as feature.cc visits."""
    if isinstance(expr, Load):
        yield expr
    for child in children(expr):
        yield from _loads_in_visit_order(child)


def store_accesses(buffers: Buffers, store: BufferStore) -> list[Access]:
    """Return a store's buffers by first touch: the written buffer, then the reads."""
    written = Access(store.buffer, WRITE, [store.indices])
    found: dict[int, Access] = {store.buffer.key: written}
    for load in _loads_in_visit_order(store.value):
        access = found.setdefault(load.stage, Access(buffers[load.stage], READ))
        # feature.cc (BufferAccessExtractor): a read of the written buffer turns it into an update,
        # whose read adds no indices.
        if access.kind == WRITE:
            access.kind = READ_WRITE
        if access.kind != READ_WRITE:
            access.indices.append(load_indices(load, store))
    return list(found.values())


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
                totals = self._totals[row]
                for name in ("all_bytes", "read_bytes", "entry_bytes"):
                    setattr(totals, name, np.where(fresh, 0.0, getattr(totals, name)))
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


LOOP, SERIAL, NONE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Reuse:
    """Kind, distance and count of the reuse of one access, each [N].

    ``kind``: 0 loop, 1 serial, 2 none; distance in iterations and bytes. ``kept_bytes`` is the
    distance in bytes when the allocator hands every node on, as it does for the dataflow rows (see
    :func:`pruner.features.statement.touches.number_loops`).
    """

    kind: NDArray[np.int64]
    distance_iters: Floats
    distance_bytes: Floats
    count: Floats
    kept_bytes: Floats


def _pick(rows: Sequence[Floats] | Floats, place: NDArray[np.int64]) -> Floats:
    """Return values at a loop's ``place`` from inside, at most the outermost, [A, N]."""
    row = np.maximum(len(rows) - 1 - place, 0)
    return np.array([pick_row(rows, one) for one in row])


def _near_bytes(
    seen: Seen,
    moved: NDArray[np.bool_],
    start: NDArray[np.int64],
) -> tuple[Floats, Floats]:
    """Return bytes touched before the reuse begins, and as kept."""
    outermost = moved.shape[1] - 1 - first_row(moved[:, ::-1])
    no_move = outermost < 0
    last_moved = np.where(no_move, 0, outermost)
    repeated = _pick(seen.entry_bytes, start)
    near = np.where(no_move, repeated, _pick(seen.all_bytes, last_moved))
    # The same arrays mean that nothing was dropped: no second lookup.
    if all(map(operator.is_, seen.all_bytes, seen.kept_bytes)):
        return near, near
    kept = np.where(no_move, repeated, _pick(seen.kept_bytes, last_moved))
    return near, kept


def compute_reuse(
    seen: Seen,
    moves: NDArray[np.bool_],
    present: NDArray[np.bool_],
    extents: Floats,
) -> list[Reuse]:
    """Compute the reuse of a store's A accesses, loops outermost first.

    ``seen``: touches so far, including the store's own; ``moves`` bool [A, L, N]: the loop's
    variable is in the indices; ``present`` bool [L, N]: the loop exists; ``extents`` float64 [L,
    N].
    """
    levels, num = extents.shape
    if levels == 0:
        zero = np.zeros(num)
        return [Reuse(np.full(num, NONE), zero, zero, zero, zero) for _ in moves]
    moves, present, extents = moves[:, ::-1], present[::-1], extents[::-1]
    order = np.arange(levels)[:, None]
    start = first_row(present & ~moves)  # first loop that repeats the access
    lead = order < start[:, None]
    # loop reuse ends at the next loop that moves it
    end = first_row(present & moves & (order > start[:, None]))
    serial_at = first_row(present & seen.shared[:, ::-1])
    # Whichever is first from inside: a loop that saw the buffer before, or the end of reuse.
    serial = serial_at < end

    distance = product_where(extents, lead)
    run = (order >= start[:, None]) & (order < end[:, None])
    count = product_where(extents, run)
    near_bytes, kept_bytes = _near_bytes(seen, present & moves & lead, start)
    kind = np.where(serial, SERIAL, np.where(start < levels, LOOP, NONE))

    extent_there = _pick(extents[::-1], serial_at)
    outward = product_where(extents, order >= serial_at[:, None])
    row = np.maximum(levels - 1 - serial_at, 0)
    least = np.array([pick_row(rows, one) for rows, one in zip(seen.least, row, strict=True)])
    # The serial distance is that of one iteration of the shared loop, so totals are divided by it.
    serial_iters = least / extent_there
    serial_bytes = _pick(seen.read_bytes, serial_at) / extent_there

    def choose(on_serial: Floats, on_loop: Floats) -> Floats:
        return np.where(serial, on_serial, np.where(kind == LOOP, on_loop, 0.0))

    iters, times = choose(serial_iters, distance), choose(outward, count)
    distances = list(choose(serial_bytes, near_bytes))
    # The same arrays where nothing was dropped, which readers test by identity.
    kept = distances if kept_bytes is near_bytes else list(choose(serial_bytes, kept_bytes))
    return [Reuse(*values) for values in zip(kind, iters, distances, times, kept, strict=True)]
