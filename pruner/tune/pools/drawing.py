"""Draw a task's programs so that every structure is equally frequent.

A uniform draw is mostly of one structure, since some compute locations have many more tilings. So
spaces, and choices of compute locations in a space, take turns; other decisions are MetaSchedule's.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Ints
from pruner.program.tir.trace import LOCATE
from pruner.search.space import unique_rows
from pruner.tune.spaces.tvm import LiveSpace
from pruner.tune.spaces.union import UnionSpace

_OVERDRAW = 16  # draws for every program that is wanted, to include rare structures
_ROUNDS = 4  # of draws before a space counts as small
_MUTATIONS = 3  # at most, from a parent to an evolved program


def stratified(space: UnionSpace, num: int, rng: np.random.Generator, seen: set[int]) -> Decisions:
    """Draw at most `num` legal programs, int64 [n, d], evenly; add to `seen`."""

    def draw(left: int) -> Decisions:
        # a space may have fewer programs than wanted: then the rounds end without enough
        rows = _new(space, space.sample(max(_OVERDRAW * left, 256), rng), seen)
        return rows[in_turns(structures(space, rows), rows[:, 0], rng)[:left]]

    return _in_rounds(space, num, seen, draw, _ROUNDS)


def evolved(
    space: UnionSpace, parents: Decisions, num: int, rng: np.random.Generator, seen: set[int]
) -> Decisions:
    """Mutate parents in turn to at most `num` new legal programs; add to `seen`."""

    def draw(left: int) -> Decisions:
        rows = parents[rng.permutation(np.arange(max(left, len(parents))) % len(parents))]
        for _ in range(int(rng.integers(1, _MUTATIONS + 1))):
            rows = space.mutate(rows, rng)
        return _new(space, rows, seen)[:left]

    return _in_rounds(space, num, seen, draw, _ROUNDS * _OVERDRAW)


def _in_rounds(
    space: UnionSpace, num: int, seen: set[int], draw: Callable[[int], Decisions], rounds: int
) -> Decisions:
    """Draw until `num` programs are there, or the rounds are over."""
    kept = [np.zeros((0, space.num_slots), np.int64)]
    for _ in range(rounds):
        rows = draw(num)
        seen.update(space.keys(rows).tolist())
        kept.append(rows)
        num -= len(rows)
        if num <= 0:
            break
    return np.concatenate(kept)


def _new(space: UnionSpace, rows: Decisions, seen: set[int]) -> Decisions:
    """Filter legal rows that were not seen, without repetitions, in order."""
    rows = rows[unique_rows(space.keys(rows))]
    fresh = np.array([key not in seen for key in space.keys(rows).tolist()], bool)
    rows = rows[fresh]
    rows = rows[np.isfinite(space.draft_score(rows))] if len(rows) else rows
    # the trees of all draws may be gigabytes, and only few of the draws are kept
    space.clear_cache()
    return rows


def structures(space: UnionSpace, rows: Decisions) -> Ints:
    """Number the rows by design space and compute locations."""
    known: dict[tuple[int, ...], int] = {}
    slots = [location_slots(one) for one in space.spaces]
    out = np.zeros(len(rows), np.int64)
    for place, row in enumerate(rows):
        number = int(row[0])
        structure = (number, *(int(row[1 + slot]) for slot in slots[number]))
        out[place] = known.setdefault(structure, len(known))
    return out


def location_slots(space: LiveSpace) -> list[int]:
    """List the slots of decisions on compute locations."""
    slots, start = [], 0
    for inst, width in zip(space.design.sampling, space.design.widths, strict=True):
        if str(inst.kind.name) == LOCATE:
            slots.append(start)
        start += width
    return slots


def in_turns(structure: Ints, space: Ints, rng: np.random.Generator) -> NDArray[np.intp]:
    """Order programs so that spaces, and structures in a space, take turns.

    >>> rng = np.random.default_rng(0)
    >>> order = in_turns(np.array([0, 0, 0, 1, 2, 2]), np.array([5, 5, 5, 5, 7, 7]), rng)
    >>> sorted(np.array([5, 5, 5, 5, 7, 7])[order[:2]].tolist())
    [5, 7]
    """
    # random order among equals; lexsort's last key is its first criterion
    luck = rng.random(len(structure))
    by_structure = np.lexsort((luck, _turns(structure, luck)))
    rank = np.empty(len(structure))
    rank[by_structure] = np.arange(len(structure))  # inside a space: structures in turns
    return np.lexsort((luck, _turns(space, rank)))


def _turns(group: Ints, order: NDArray[np.float64]) -> Ints:
    """Number the programs within their group, by `order`."""
    sorted_rows = np.lexsort((order, group))
    counts = np.unique(group, return_counts=True)[1]
    turns = np.empty(len(group), np.int64)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    turns[sorted_rows] = np.arange(len(group)) - starts
    return turns
