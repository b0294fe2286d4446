"""Spaces of decision vectors: sample, mutate, de-duplicate, all vectorised over the population.

A skeleton fixes what is decided: the lengths of every split and the unroll depths. Split lengths of
an axis of extent E are a perfect tiling: their product divides E and the innermost is at most
``max_innermost_factor`` (Ansor's rule, 64). Vector lengths of cooperative fetches and unroll depths
are choices from a short list; so are, in a space of a
:class:`~pruner.search.ansor_space.family.Family`, the open steps: where a stage is computed, what
runs in parallel, what is a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Keys
from pruner.errors import PrunerError
from pruner.program.dag.dag import ComputeDAG
from pruner.program.te.steps import Primitive, Split, UnrollPragma
from pruner.search.ansor_space.extents import is_gpu, split_extents
from pruner.search.ansor_space.family import Family
from pruner.search.keys import RowKeys

Rule = Literal["tile", "unroll", "location", "annotation"]
GPU_UNROLL = (0, 16, 64, 512, 1024)
CPU_UNROLL = (0, 16, 64, 512)
FETCH_VECTORS = (1, 2, 4)
MAX_INNERMOST_FACTOR = 64
MAX_THREADS = 1024


class SearchSpace(Protocol):
    """What explorers and policies need of a space, open or recorded."""

    num_slots: int

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Independent draws int64 [num, d]."""

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """One change of every parent."""

    @property
    def keys(self) -> Callable[[Decisions], Keys]:
        """A 64-bit key for every row; equal rows have equal keys."""


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """Lengths of one split: ``table`` int64 [T, k], every legal tuple once."""

    slots: tuple[int, ...]
    extent: int
    limit: int  # of the innermost length
    table: Decisions
    rule: Rule = "tile"


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One decision from a list; ``rule`` says which mutations redraw it."""

    slot: int
    values: Decisions
    rule: Rule


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
    """How often a mutation is of each kind; kinds that a space does not have are left out.

    The constants are Ansor's (src/auto_scheduler/search_policy/sketch_policy.cc): on a GPU it moves
    tiles and unrolls, on a CPU also compute locations and the parallel loops.
    """

    tile: float
    unroll: float
    location: float
    annotation: float


GPU_RULE = MutationRule(tile=0.90, unroll=0.10, location=0.05, annotation=0.01)
CPU_RULE = MutationRule(tile=0.90, unroll=0.04, location=0.05, annotation=0.01)


class DecisionSpace:
    """All decision vectors of one skeleton, or of a family of skeletons.

    Generators are passed in; nothing here loops over candidates.
    """

    def __init__(
        self,
        dag: ComputeDAG,
        skeleton: tuple[Primitive, ...],
        *,
        family: Family | None = None,
        rule: MutationRule | None = None,
    ) -> None:
        """`family`: that of `skeleton`, whose open steps become decisions behind the skeleton's.

        Raises `UnsupportedProgram` for a skeleton that cannot be replayed, `PrunerError` for one
        without any decision.
        """
        gpu = is_gpu(skeleton)
        self._family = family
        self._rule = rule or (GPU_RULE if gpu else CPU_RULE)
        found = list(_decisions(skeleton, split_extents(dag, skeleton), gpu=gpu))
        self.tilings = [d for d in found if isinstance(d, Tiling)]
        self.choices = [d for d in found if isinstance(d, Choice)]
        slots = [s for t in self.tilings for s in t.slots] + [c.slot for c in self.choices]
        self.num_slots = max(slots, default=-1) + 1
        for number, step in enumerate(family.opens if family else ()):
            values = np.arange(len(step.alternatives))
            self.choices.append(Choice(self.num_slots + number, values, step.rule))
        self.num_slots += len(family.opens) if family else 0
        if not self.num_slots:
            raise PrunerError("this skeleton decides nothing: it has no split and no unroll depth")
        self.keys = RowKeys(self.num_slots)

    @property
    def size(self) -> float:
        """Number of decision vectors (as a float: it may exceed 2**63), invalid members too."""
        tables = [float(len(t.table)) for t in self.tilings]
        return float(np.prod(tables + [float(len(c.values)) for c in self.choices]))

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Independent uniform draws int64 [num, d]: every tuple of a split is equally likely.

        Of a family every valid member is equally likely.
        """
        out = np.empty((num, self.num_slots), np.int64)
        for tiling in self.tilings:
            out[:, tiling.slots] = tiling.table[rng.integers(0, len(tiling.table), num)]
        for choice in self.choices:
            out[:, choice.slot] = choice.values[rng.integers(0, len(choice.values), num)]
        while len(rows := np.flatnonzero(~self._valid(out))):
            for choice in self.choices:
                if choice.rule in ("location", "annotation"):
                    drawn = rng.integers(0, len(choice.values), len(rows))
                    out[rows, choice.slot] = choice.values[drawn]
        return out

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """One mutation of every parent: move a factor inside a split, or redraw a choice.

        A child whose member is not valid is its parent again.
        """
        out = parents.copy()
        decisions: list[Tiling | Choice] = [t for t in self.tilings if len(t.table) > 1]
        decisions += [c for c in self.choices if len(c.values) > 1]
        if not decisions:
            return out
        which = rng.choice(len(decisions), len(out), p=self._shares(decisions))
        for number, decision in enumerate(decisions):
            rows = np.flatnonzero(which == number)
            if isinstance(decision, Tiling):
                slots = np.array(decision.slots)
                out[rows[:, None], slots] = _move_factor(decision, out[rows][:, slots], rng)
            else:
                values = decision.values
                out[rows, decision.slot] = values[rng.integers(0, len(values), len(rows))]
        return np.where(self._valid(out)[:, None], out, parents)

    def _shares(self, decisions: list[Tiling | Choice]) -> NDArray[np.float64]:
        """Probability of each decision to be mutated: its rule's, shared evenly."""
        rules = [d.rule for d in decisions]
        weights = np.array([getattr(self._rule, rule) / rules.count(rule) for rule in rules])
        return weights / weights.sum()

    def _valid(self, decisions: Decisions) -> NDArray[np.bool_]:
        return (
            np.ones(len(decisions), bool) if self._family is None else self._family.valid(decisions)
        )

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


def _decisions(
    skeleton: tuple[Primitive, ...], extents: dict[tuple[int, ...], int], *, gpu: bool
) -> Iterator[Tiling | Choice]:
    """What the splits and unroll depths of a skeleton decide."""
    for step in skeleton:
        if isinstance(step, UnrollPragma):
            yield Choice(step.slot, np.array(GPU_UNROLL if gpu else CPU_UNROLL), "unroll")
        elif isinstance(step, Split) and step.slots in extents:
            extent = extents[step.slots]
            threads = gpu and len(step.slots) == 1
            limit = MAX_THREADS if threads else MAX_INNERMOST_FACTOR
            table = factorisations(extent, len(step.slots), limit)
            yield Tiling(step.slots, extent, limit, table)
        elif isinstance(step, Split):
            for slot in step.slots:
                yield Choice(slot, np.array(FETCH_VECTORS), "tile")


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
    factor = np.where(count > 0, found[chosen], 1)
    whole[row, source] //= factor
    whole[row, target] *= factor
    legal = whole[:, -1] <= tiling.limit
    return np.where(legal[:, None], whole[:, 1:], lengths)


def unique_rows(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of the first row of every key, in order of first appearance."""
    return np.sort(np.unique(keys, return_index=True)[1])
