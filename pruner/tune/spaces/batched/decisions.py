"""Sample and mutate the open decisions of a trace for all candidates, as MetaSchedule.

Sources: src/s_tir/schedule/primitive/sampling.cc, src/s_tir/meta_schedule/mutator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Ints, Mask
from pruner.program.tir.apply_trace import location_options, tile_extents
from pruner.program.tir.trace import Instruction, Ref, TraceProgram
from pruner.search.space import divisors


@dataclass(frozen=True, slots=True, eq=False)
class TileDecision:
    """Factors of a loop of ``extent`` iterations, the last at most ``limit``.

    Factors from ``inside`` on are a multiple of ``divisor`` (``sample_partitioned_tile``).
    """

    slots: slice
    extent: int
    limit: int
    inside: int = 0
    divisor: int = 1

    def sample(self, out: Decisions, rng: np.random.Generator) -> None:
        """Fill the columns with uniform random factorisations."""
        pending = np.arange(len(out))
        # rejection keeps the distribution uniform, as in TVM's sampling
        while len(pending):
            drawn = self._draw(len(pending), rng)
            good = (drawn[:, -1] <= self.limit) & (self._inner(drawn) % self.divisor == 0)
            out[pending[good], self.slots] = drawn[good]
            pending = pending[~good]

    def _inner(self, tiles: Ints) -> Ints:
        return np.asarray(tiles[:, self.inside :].prod(axis=1))

    def _draw(self, num: int, rng: np.random.Generator) -> Ints:
        """Distribute every prime's exponent over the parts by stars and bars."""
        parts = self.slots.stop - self.slots.start
        out = np.ones((num, parts), np.int64)
        for prime, power in prime_powers(self.extent):
            places = power + parts - 1
            # the first parts - 1 of a random order are a uniform choice without repetition
            bars = np.sort(rng.random((num, places)).argsort(axis=1)[:, : parts - 1], axis=1)
            edges = np.concatenate([np.full((num, 1), -1), bars, np.full((num, 1), places)], axis=1)
            out *= prime ** (np.diff(edges, axis=1) - 1)
        return out

    def can_change(self) -> bool:
        """Check whether a factor can move."""
        return self.extent > 1 and self.slots.stop - self.slots.start > 1

    def mutate(self, out: Decisions, rows: Ints, rng: np.random.Generator) -> None:
        """Move a divisor between two factors (``MutateSampleTileSize``), of all tiles."""
        tiles = out[rows, self.slots]
        parts = tiles.shape[1]
        # without 1: moving it changes nothing
        found = divisors(self.extent)[1:]
        pending = np.arange(len(rows))
        while len(pending):
            here = np.arange(len(pending))
            now = tiles[pending]
            x = rng.integers(0, parts, len(pending))
            y = (x + rng.integers(1, parts, len(pending))) % parts
            fits = now[here, x][:, None] % found[None, :] == 0
            # only the innermost factor is limited, as in sample_perfect_tile
            room = np.where(y == parts - 1, self.limit // now[here, y], self.extent)
            fits &= found[None, :] <= room[:, None]
            # a factor that leaves the inner parts must keep their product a multiple of the divisor
            outwards = (x >= self.inside) & (y < self.inside)
            left = self._inner(now)[:, None] // found[None, :]
            fits &= ~outwards[:, None] | (left % self.divisor == 0)
            column, count = _drawn(fits, rng)
            factor = np.where(count > 0, found[column], 1)
            now[here, x] //= factor
            now[here, y] *= factor
            tiles[pending] = now
            # draw other positions; where two parts leave no alternative TVM keeps the parent
            stuck = (count == 0) & ((parts > 2) | (tiles[pending][here, x] == 1))
            pending = pending[stuck]
        out[rows, self.slots] = tiles


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceDecision:
    """An index into candidates with probabilities ``probs``."""

    slot: int
    probs: NDArray[np.float64]

    def sample(self, out: Decisions, rng: np.random.Generator) -> None:
        """Fill the column with indices by the probabilities."""
        shares = self.probs / self.probs.sum()
        out[:, self.slot] = rng.choice(len(shares), size=len(out), p=shares)

    def options(self, decisions: Decisions) -> tuple[Ints, Mask]:
        """List all candidates [V]; every program may have each [N, V]."""
        return np.arange(len(self.probs)), np.ones((len(decisions), len(self.probs)), bool)

    def can_change(self) -> bool:
        """Check whether there is another candidate."""
        return len(self.probs) > 1

    def mutate(self, out: Decisions, rows: Ints, rng: np.random.Generator) -> None:
        """Draw another candidate, by the probabilities of the others."""
        weights = np.tile(self.probs, (len(rows), 1))
        # TVM removes the present choice, too: a mutation always changes the program
        weights[np.arange(len(rows)), out[rows, self.slot]] = 0.0
        edges = np.cumsum(weights, axis=1)
        drawn = rng.random(len(rows)) * edges[:, -1]
        chosen = (edges <= drawn[:, None]).sum(axis=1)
        # rounding may push the draw past the last edge
        out[rows, self.slot] = np.minimum(chosen, len(self.probs) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class LocationDecision:
    """The location of a block; its options depend on earlier decisions."""

    slot: int
    program: TraceProgram

    def sample(self, out: Decisions, rng: np.random.Generator) -> None:
        """Fill the column; columns of earlier decisions are filled already."""
        self._draw(out, np.arange(len(out)), rng, change=False)

    def options(self, decisions: Decisions) -> tuple[Ints, Mask]:
        """List locations [V], and where each is offered [N, V]."""
        return location_options(self.program, decisions, self.slot)

    def can_change(self) -> bool:
        """Return True: the options depend on the program."""
        return True

    def mutate(self, out: Decisions, rows: Ints, rng: np.random.Generator) -> None:
        """Draw another location uniformly; keep the only location."""
        self._draw(out, rows, rng, change=True)

    def _draw(self, out: Decisions, rows: Ints, rng: np.random.Generator, *, change: bool) -> None:
        places, allowed = self.options(out[rows])
        if not len(places):  # no program, or none that can be replayed: the replay reports it
            return
        if change:
            allowed = allowed & (places[None, :] != out[rows, self.slot][:, None])
        column, count = _drawn(allowed, rng)
        out[rows, self.slot] = np.where(count > 0, places[column], out[rows, self.slot])


def _drawn(allowed: Mask, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw one of each row's allowed columns alike; return also how many these are."""
    count = allowed.sum(axis=1)
    rank = (rng.random(len(allowed)) * count).astype(np.int64)
    return np.argmax(allowed & (np.cumsum(allowed, axis=1) == rank[:, None] + 1), axis=1), count


Decision = TileDecision | ChoiceDecision | LocationDecision


def open_decisions(program: TraceProgram, example: NDArray[np.int64]) -> dict[int, Decision]:
    """Create a decision for every first slot, given a vector that replays."""
    extents = tile_extents(program, example)
    out: dict[int, Decision] = {}
    for i in program.instructions:
        if i.kind == "SamplePerfectTile":
            parts, limit = int(i.attrs[0]), int(i.attrs[1])
            extent = extents[i.slot]
            # TVM writes -1 for an innermost factor without limit
            limit = extent if limit < 0 else limit
            out[i.slot] = TileDecision(slice(i.slot, i.slot + parts), extent, limit)
        elif i.kind == "SamplePartitionedTile":
            parts, inside, divisor = (int(attr) for attr in i.attrs)
            extent = extents[i.slot]
            # no limit of the innermost factor: the divisor keeps fragments complete
            slots = slice(i.slot, i.slot + parts)
            out[i.slot] = TileDecision(slots, extent, extent, inside, divisor)
        elif i.kind == "SampleCategorical":
            out[i.slot] = ChoiceDecision(i.slot, np.asarray(i.attrs[1], np.float64))
        elif i.kind == "SampleComputeLocation":
            out[i.slot] = LocationDecision(i.slot, program)
    return out


def prime_powers(number: int) -> list[tuple[int, int]]:
    """Factorise into primes with their exponents."""
    out, prime = [], 2
    while prime * prime <= number:
        power = 0
        while number % prime == 0:
            number, power = number // prime, power + 1
        if power:
            out.append((prime, power))
        prime += 1
    return [*out, (number, 1)] if number > 1 else out


GPU = {"tile": 0.90, "unroll": 0.08, "threads": 0.02}
# without MutateParallel's 0.02: it changes an annotation, no decision
CPU = {"tile": 0.90, "location": 0.05, "unroll": 0.03}


class Mutators:
    """Decisions by mutator, in the shares of ``Mutator::DefaultCUDA`` and ``DefaultLLVM``."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        decisions: dict[int, Decision],
        shares: dict[str, float],
    ) -> None:
        """Group ``decisions``, which are keyed by the slot where they start."""
        samples = {i.outputs[0]: i.slot for i in instructions if i.kind == "SampleCategorical"}
        groups: dict[str, list[Decision]] = {name: [] for name in shares}
        groups["tile"] = [d for d in decisions.values() if isinstance(d, TileDecision)]
        # MutateTileSize also changes the vector lanes of cooperative fetches (mutate_tile_size.cc)
        groups["tile"] += _of(decisions, _annotated(instructions, samples, "cooperative_fetch"))
        groups["unroll"] = _of(decisions, _annotated(instructions, samples, "unroll_"))
        groups["location"] = [d for d in decisions.values() if isinstance(d, LocationDecision)]
        if "threads" in groups:
            groups["threads"] = _of(decisions, _thread_factors(instructions, samples))
        kept = {name: [d for d in found if d.can_change()] for name, found in groups.items()}
        self._groups = [found for found in kept.values() if found]
        chances = np.array([shares.get(name, 0.0) for name, found in kept.items() if found])
        # a mutator that finds nothing to change leaves its probability to the others
        self._chances = chances / chances.sum() if len(chances) else chances

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Mutate every parent once; a space without choices returns the parents unchanged."""
        out = parents.copy()
        if not self._groups:
            return out
        group = rng.choice(len(self._groups), size=len(out), p=self._chances)
        for number, decisions in enumerate(self._groups):
            which = rng.integers(0, len(decisions), len(out))
            for place, decision in enumerate(decisions):
                rows = np.flatnonzero((group == number) & (which == place))
                if len(rows):
                    decision.mutate(out, rows, rng)
        return out


def _of(decisions: dict[int, Decision], slots: Sequence[int]) -> list[Decision]:
    found = [decisions[slot] for slot in slots]
    return [decision for decision in found if isinstance(decision, ChoiceDecision)]


def _annotated(instructions: Sequence[Instruction], samples: dict[int, int], key: str) -> list[int]:
    """List the slots of choices that annotations with ``key`` use."""
    out = []
    for i in instructions:
        if i.kind == "Annotate" and f"meta_schedule.{key}" in str(i.attrs[0]):
            value = i.inputs[1]
            if isinstance(value, Ref) and value.number in samples:
                out.append(samples[value.number])
    return out


def _thread_factors(instructions: Sequence[Instruction], samples: dict[int, int]) -> list[int]:
    """List the slots of choices that split off ``threadIdx.x``."""
    inner: dict[int, int] = {}
    out = []
    for i in instructions:
        # MutateThreadBinding looks for [None, factor], as AutoBind splits a fused loop
        if i.kind == "Split" and len(i.inputs) == 3 and i.inputs[1] is None:
            factor = i.inputs[2]
            if isinstance(factor, Ref) and factor.number in samples:
                inner[i.outputs[1]] = samples[factor.number]
        elif i.kind == "Bind" and i.attrs[0] == "threadIdx.x" and i.inputs[0].number in inner:
            out.append(inner[i.inputs[0].number])
    return out
