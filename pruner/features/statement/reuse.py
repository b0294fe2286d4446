"""Compute data reuse of a store's accesses (``ComputeReuse`` of feature.cc).

From the inside out: loops that move the access lengthen the reuse distance; the first that does not
starts the reuse count, which ends at the next that does. A loop in which the buffer was touched
before ends the scan with serial reuse.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.statement.array_helpers import first_row, pick_row, product_where
from pruner.features.statement.touches import Seen

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
