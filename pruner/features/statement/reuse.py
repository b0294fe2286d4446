"""Data reuse of a store's accesses (``ComputeReuse`` of feature.cc), for N candidates at once.

Scanning loops from the inside out: loops whose variable is in the indices lengthen the reuse
distance; the first one that is not starts the reuse count, which ends at the next loop that moves
the access. A loop in which the buffer was touched before ends the scan with serial reuse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.statement.tensors import pick
from pruner.features.statement.touches import Seen

LOOP, SERIAL, NONE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Reuse:
    """Kind (0 loop, 1 serial, 2 none), distance in iterations and bytes, and count; each [N].

    ``kept_bytes`` is the distance in bytes when the allocator hands every node on, as it does for
    the dataflow rows (see :func:`pruner.features.statement.touches.number_loops`).
    """

    kind: NDArray[np.int64]
    distance_iters: Floats
    distance_bytes: Floats
    count: Floats
    kept_bytes: Floats


def _first(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Place of the first True along axis 1, [A, N]; the number of places where there is none."""
    return np.where(mask.any(1), mask.argmax(1), mask.shape[1])


def _pick(table: Floats, row: NDArray[np.int64]) -> Floats:
    """``table[row[a, n], n]`` or ``table[a, row[a, n], n]`` (the row is clipped to the table)."""
    row = np.minimum(row, table.shape[-2] - 1)
    if table.ndim == 2:
        return pick(table, row)
    return table[np.arange(len(table))[:, None], row, np.arange(table.shape[2])]


def _near_bytes(
    seen: Seen,
    moved: NDArray[np.bool_],
    start: NDArray[np.int64],
) -> tuple[Floats, Floats]:
    """Bytes touched in the outermost loop that moves before the reuse begins, and as kept.

    Without such a loop: one element of every access in the loop where the reuse begins.
    """
    last_moved = np.maximum(moved.shape[1] - 1 - _first(moved[:, ::-1]), 0)
    no_move = ~moved.any(1)
    repeated = _pick(seen.entry_bytes[::-1], start)
    near = np.where(no_move, repeated, _pick(seen.all_bytes[::-1], last_moved))
    kept = np.where(no_move, repeated, _pick(seen.kept_bytes[::-1], last_moved))
    return near, kept


def compute_reuse(
    seen: Seen,
    moves: NDArray[np.bool_],
    present: NDArray[np.bool_],
    extents: Floats,
) -> list[Reuse]:
    """Reuse of the A accesses of a store, loops being outermost first.

    Args:
        seen: what was touched so far, by the store itself, too.
        moves: bool [A, L, N], the loop's variable is in the indices.
        present: bool [L, N], the loop exists.
        extents: float64 [L, N].
    """
    levels, num = extents.shape
    if levels == 0:
        zero = np.zeros(num)
        return [Reuse(np.full(num, NONE), zero, zero, zero, zero) for _ in moves]
    moves, present, extents = moves[:, ::-1], present[::-1], extents[::-1]
    order = np.arange(levels)[:, None]
    start = _first(present & ~moves)  # first loop that repeats the access
    lead = order < start[:, None]
    # loop reuse ends at the next loop that moves it
    end = _first(present & moves & (order > start[:, None]))
    serial_at = _first(present & seen.shared[:, ::-1])
    serial = serial_at < end

    distance = np.where(lead, extents, 1.0).prod(1)
    run = (order >= start[:, None]) & (order < end[:, None])
    count = np.where(run, extents, 1.0).prod(1)
    near_bytes, kept_bytes = _near_bytes(seen, present & moves & lead, start)
    kind = np.where(serial, SERIAL, np.where(start < levels, LOOP, NONE))

    extent_there = _pick(extents, serial_at)
    outward = np.where(order >= serial_at[:, None], extents, 1.0).prod(1)
    serial_iters = _pick(seen.least[:, ::-1], serial_at) / extent_there
    serial_bytes = _pick(seen.read_bytes[::-1], serial_at) / extent_there

    def choose(on_serial: Floats, on_loop: Floats) -> Floats:
        return np.where(serial, on_serial, np.where(kind == LOOP, on_loop, 0.0))

    iters, bytes_ = choose(serial_iters, distance), choose(serial_bytes, near_bytes)
    times, kept = choose(outward, count), choose(serial_bytes, kept_bytes)
    return [Reuse(kind[a], iters[a], bytes_[a], times[a], kept[a]) for a in range(len(moves))]
