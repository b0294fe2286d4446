"""Spaces of decision vectors: sample, mutate, de-duplicate, all vectorised over the population.

A skeleton fixes what is decided: the lengths of every split and the unroll depth. Split lengths of
an axis of extent E are a perfect tiling: their product divides E and the innermost is at most
``max_innermost_factor`` (Ansor's rule, 64). Vector lengths of cooperative fetches and the unroll
depth are choices from a short list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.features.tiling import tile_skeleton
from pruner.program.dag import ComputeDAG
from pruner.program.steps import Primitive, Split, UnrollPragma

Decisions = NDArray[np.int64]
GPU_UNROLL = (0, 16, 64, 512, 1024)
FETCH_VECTORS = (1, 2, 4)
MAX_INNERMOST_FACTOR = 64
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """Lengths of one split: ``table`` int64 [T, k], every legal tuple once."""

    slots: tuple[int, ...]
    extent: int
    limit: int  # of the innermost length
    table: Decisions


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One decision from a list; ``is_tile``: mutated with the tiles, not with the unroll depth."""

    slot: int
    values: Decisions
    is_tile: bool


def divisors(extent: int) -> Decisions:
    """All divisors in ascending order."""
    small = np.arange(1, int(extent**0.5) + 1)
    small = small[extent % small == 0]
    return np.unique(np.concatenate([small, extent // small]))


def factorisations(extent: int, parts: int, limit: int) -> Decisions:
    """All tuples of ``parts`` lengths whose product divides ``extent``, the last at most ``limit``.

    Returns int64 [T, parts] in lexicographic order. Raises `PrunerError` for an extent below 1.
    """
    if extent < 1:
        raise PrunerError(f"extent {extent} has no tiling; extents must be at least 1")
    table = np.zeros((1, 0), np.int64)
    left = np.array([extent])
    found = divisors(extent)
    for part in range(parts):
        allowed = found[found <= limit] if part == parts - 1 else found
        row, column = np.nonzero(left[:, None] % allowed[None, :] == 0)
        table = np.concatenate([table[row], allowed[column, None]], axis=1)
        left = left[row] // allowed[column]
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRule:
    """Ansor's rules for GPUs: a mutation moves tiles, or it changes the unroll depth."""

    tile: float = 0.90
    unroll: float = 0.10


class DecisionSpace:
    """All decision vectors of one skeleton.

    Generators are passed in; nothing here loops over candidates.
    """

    def __init__(
        self,
        dag: ComputeDAG,
        skeleton: tuple[Primitive, ...],
        *,
        unroll: tuple[int, ...] = GPU_UNROLL,
        fetch_vectors: tuple[int, ...] = FETCH_VECTORS,
        rule: MutationRule | None = None,
    ) -> None:
        """Raises `UnsupportedProgram` where the skeleton has no formulas (see `tile_skeleton`)."""
        self._rule = rule or MutationRule()
        self.tilings: list[Tiling] = []
        self.choices: list[Choice] = []
        extents = tile_skeleton(dag, skeleton).whole_splits
        for step in skeleton:
            if isinstance(step, UnrollPragma):
                self.choices.append(Choice(step.slot, np.array(unroll), is_tile=False))
            elif isinstance(step, Split) and step.slots in extents:
                extent = extents[step.slots]
                limit = MAX_INNERMOST_FACTOR if len(step.slots) > 1 else MAX_THREADS
                table = factorisations(extent, len(step.slots), limit)
                self.tilings.append(Tiling(step.slots, extent, limit, table))
            elif isinstance(step, Split):
                vectors = np.array(fetch_vectors)
                self.choices.extend(Choice(slot, vectors, is_tile=True) for slot in step.slots)
        slots = [s for t in self.tilings for s in t.slots] + [c.slot for c in self.choices]
        self.num_slots = max(slots, default=-1) + 1
        random = np.random.default_rng(20250330)
        self._hash = random.integers(1, 1 << 62, self.num_slots, dtype=np.int64) | 1

    @property
    def size(self) -> float:
        """Number of decision vectors (as a float: it may exceed 2**63)."""
        tables = [float(len(t.table)) for t in self.tilings]
        return float(np.prod(tables + [float(len(c.values)) for c in self.choices]))

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Independent uniform draws int64 [num, d]: every tuple of a split is equally likely."""
        out = np.empty((num, self.num_slots), np.int64)
        for tiling in self.tilings:
            out[:, tiling.slots] = tiling.table[rng.integers(0, len(tiling.table), num)]
        for choice in self.choices:
            out[:, choice.slot] = choice.values[rng.integers(0, len(choice.values), num)]
        return out

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """One mutation of every parent: move a factor inside a split, or redraw a choice."""
        out = parents.copy()
        tiles: list[Tiling | Choice] = [*self.tilings, *(c for c in self.choices if c.is_tile)]
        others = [c for c in self.choices if not c.is_tile]
        share = self._rule.tile / (self._rule.tile + self._rule.unroll)
        pick_tile = rng.random(len(out)) < share if others else np.ones(len(out), bool)
        which = np.where(
            pick_tile,
            rng.integers(0, max(len(tiles), 1), len(out)),
            len(tiles) + rng.integers(0, max(len(others), 1), len(out)),
        )
        for number, decision in enumerate([*tiles, *others]):
            rows = np.flatnonzero(which == number)
            if isinstance(decision, Tiling):
                slots = np.array(decision.slots)
                out[rows[:, None], slots] = _move_factor(decision, out[rows][:, slots], rng)
            else:
                values = decision.values
                out[rows, decision.slot] = values[rng.integers(0, len(values), len(rows))]
        return out

    def keys(self, decisions: Decisions) -> NDArray[np.int64]:
        """A 64-bit key a row; equal rows have equal keys."""
        with np.errstate(over="ignore"):
            return (decisions * self._hash).sum(axis=1)

    def contains(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Which rows are points of this space."""
        good = np.ones(len(decisions), bool)
        for t in self.tilings:
            lengths = decisions[:, t.slots]
            good &= (lengths > 0).all(axis=1) & (lengths[:, -1] <= t.limit)
            good &= t.extent % np.maximum(lengths.prod(axis=1), 1) == 0
        for c in self.choices:
            good &= np.isin(decisions[:, c.slot], c.values)
        return good


def _move_factor(tiling: Tiling, lengths: Decisions, rng: np.random.Generator) -> Decisions:
    """Move a random divisor (above 1) of one length, the outermost included, to another one."""
    num, parts = lengths.shape
    whole = np.concatenate([tiling.extent // lengths.prod(axis=1, keepdims=True), lengths], axis=1)
    row = np.arange(num)
    source = rng.integers(0, parts + 1, num)
    target = (source + rng.integers(1, parts + 1, num)) % (parts + 1)
    found = divisors(tiling.extent)[1:]
    fits = whole[row, source][:, None] % found[None, :] == 0
    count = fits.sum(axis=1)
    rank = (rng.random(num) * count).astype(np.int64)
    chosen = np.argmax(fits & (np.cumsum(fits, axis=1) == rank[:, None] + 1), axis=1)
    factor = np.where(count > 0, found[chosen] if len(found) else 1, 1)
    whole[row, source] //= factor
    whole[row, target] *= factor
    legal = whole[:, -1] <= tiling.limit
    return np.where(legal[:, None], whole[:, 1:], lengths)


def unique_rows(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the first row of every key, in order of first appearance."""
    return np.sort(np.unique(keys, return_index=True)[1])
