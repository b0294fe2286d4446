"""Search by the gradient of the analyzer's score in tile sizes, after Felix (ASPLOS'24).

From the source (Zhao et al.): Adam on the logarithms of tile sizes from many programs at once,
penalties beyond the limits of a device, and rounding to the nearest factors. Differences: the
analyzer's own code records its formulas (:mod:`pruner.program.relaxed`) at some programs of a
design space, the *anchors*; the logarithms of a loop's factors lie on a simplex, so their product
is exact; every step is rounded, and promising single moves of a prime factor are tried; other
decisions come from random programs and mutations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from pruner.arrays import Decisions, Floats, Ints, Keys
from pruner.errors import PrunerError
from pruner.models.analyzer.derivatives import RelaxedScores
from pruner.search.construct import Tile, Tiling, tilings_of
from pruner.search.explorer import (
    MUTATED,
    Explored,
    ExplorerSettings,
    NoneFound,
    ScoreFunction,
    kept,
)
from pruner.search.policy import DraftThenVerify, RoundSettings
from pruner.search.space import divisors, unique_rows

log = logging.getLogger(__name__)
_BETAS = 0.9, 0.999  # Kingma and Ba, ICLR 2015, as in Felix
_EPSILON = 1e-8
_DRAFT = ExplorerSettings(population=512, generations=0, keep=256)
_VERIFY = ExplorerSettings(population=1536, generations=0, keep=64)
NO_ANALYZER = (
    "policy=gradient follows the formulas of the analyzer, which needs a description of the device "
    "(platform=NAME); use another policy, such as pruner_live"
)
_ABSENT = -1e9  # a place of the table that its tile does not have


class GradientPolicy(DraftThenVerify):
    """The round of `DraftThenVerify` whose draft follows gradients instead of evolution."""

    _settings: DescentSettings

    def _begin(self) -> None:
        space = self._space
        tilings = tilings_of(
            space,
            "policy=gradient needs the tiles of a design space; recorded programs have none, "
            "and the analyzer scores all of them without derivatives: use policy=pool",
            NO_ANALYZER
            if getattr(space, "analyzer", None) is None
            else "policy=gradient needs the formulas of the analyzer; use draft.form=hardware",
            "policy=gradient needs tiles, and TVM replays all design spaces of this task, so "
            "their scores have no derivatives; use policy=pruner_live",
        )
        super()._begin()
        self._descent = Descent(space, self._settings, tilings)

    def _explored(
        self, draft: ScoreFunction, how: ExplorerSettings, start: Decisions, seen: Keys
    ) -> Decisions:
        return self._descent.explore(draft, how, self._rng, start, seen).decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class DescentSettings(RoundSettings):
    """Settings of the gradient search, added to a tuning round.

    ``starts``: programs that follow the gradient at once; ``anchors``: times that the formulas are
    recorded; ``steps``: of Adam after each; ``moves``: single moves that are tried; ``rate``: of
    Adam, in natural logarithms of tile sizes; ``penalty``: weight of squared logarithms of amounts
    beyond a limit. ``draft.population`` random programs are scored first.
    """

    draft: ExplorerSettings | None = _DRAFT
    verify: ExplorerSettings = _VERIFY
    draft_leads: bool = True
    starts: int = 256
    anchors: int = 5
    steps: int = 2
    moves: int = 6
    rate: float = 0.35
    penalty: float = 4.0

    policy: ClassVar = GradientPolicy

    def __post_init__(self) -> None:
        RoundSettings.__post_init__(self)
        if min(self.starts - 1, self.anchors, self.steps, self.moves) < 1:
            raise PrunerError(
                "policy.starts must be at least 2; policy.anchors, policy.steps and policy.moves 1"
            )
        if self.draft is None:
            raise PrunerError("policy=gradient drafts; policy.draft must not be null")
        evolution = self.draft.generations, self.draft.noise, self.draft.mutation_probability
        if evolution != (0, 0.0, MUTATED):
            raise PrunerError(
                "policy=gradient drafts without evolution: policy.draft.generations, noise and "
                "mutation_probability have no effect; leave them out"
            )
        if self.rate <= 0 or self.penalty < 0:
            raise PrunerError("policy.rate must be above 0, and policy.penalty 0 or more")

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`pruner.search.policy.PolicySettings`."""
        fewer = RoundSettings.limited(self, population, can_draft=can_draft)
        return replace(fewer, starts=max(2, min(population, self.starts)))


class Descent:
    """Follow the gradient of the scores of a task's design spaces."""

    def __init__(
        self, space: Any, settings: DescentSettings, tilings: Sequence[Tiling | None]
    ) -> None:
        self._space, self._settings = space, settings
        found = [() if tiling is None else tiling.tiles for tiling in tilings]
        # A tile of one factor, or of an extent of 1, has nothing to choose.
        moving = [[t for t in tiles if len(t.slots) > 1 and t.extent > 1] for tiles in found]
        self._tables = {n: _TileTable(tiles) for n, tiles in enumerate(moving) if tiles}
        self._lost: set[int] = set()
        if not self._tables:
            log.warning(
                "policy=gradient: no design space of this task has tiles, so that scores have no "
                "derivatives; mutations alone draft it"
            )

    def explore(
        self,
        draft: ScoreFunction,
        how: ExplorerSettings,
        rng: np.random.Generator,
        start: Decisions,
        exclude: Keys,
    ) -> Explored:
        """Return the ``how.keep`` best new legal programs; raise `NoneFound` without any."""
        rows, score = self._distinct(start, draft(start))
        scored, num = len(start), self._settings.starts
        for turn in range(self._settings.anchors):
            # Mutations find other decisions that are no tiles, and the spaces without derivatives.
            changed = self._space.mutate(rows[kept(score, num, rng=rng)], rng)
            moved = [changed]
            number = self._turn(turn, rows, score)
            if number is not None:
                mine = rows[:, 0] == number
                anchors = rows[mine][kept(score[mine], num // 2, rng=rng)]
                anchors = np.concatenate([anchors, self._space.mutate(anchors, rng)])
                moved += [anchors[len(anchors) // 2 :], self._moved(number, anchors)]
            found = np.concatenate(moved)
            scored += len(found) + (0 if number is None else num * self._settings.steps)
            rows, score = self._distinct(
                np.concatenate([rows, found]), np.concatenate([score, draft(found)])
            )
        new = np.flatnonzero(~np.isin(self._space.keys(rows), exclude))
        best = new[kept(score[new], how.keep, rng=rng, decisions=rows[new], apart=how.apart)]
        if not len(best):
            raise NoneFound("policy=gradient finds no other legal program")
        return Explored(decisions=rows[best], score=score[best], scored=scored)

    def _distinct(self, rows: Decisions, score: Floats) -> tuple[Decisions, Floats]:
        legal = np.flatnonzero(np.isfinite(score))
        legal = legal[unique_rows(self._space.keys(rows[legal]))]
        return rows[legal], score[legal]

    def _turn(self, turn: int, rows: Decisions, score: Floats) -> int | None:
        """Number of the design space whose turn it is; the best program's begins.

        None: no program of `rows` has tiles.
        """
        first = {n: score[rows[:, 0] == n].max(initial=-np.inf) for n in self._tables}
        here = sorted((n for n in first if first[n] > -np.inf), key=lambda n: -first[n])
        return here[turn % len(here)] if here else None

    def _moved(self, number: int, anchors: Decisions) -> Decisions:
        end = 1 + self._space.spaces[number].num_slots
        path = self.followed(number, self._tables[number], anchors[:, 1:end])
        rows = np.zeros((len(path), anchors.shape[1]), np.int64)
        rows[:, 0], rows[:, 1:end] = number, path
        return rows

    def followed(self, number: int, table: _TileTable, anchors: Decisions) -> Decisions:
        """Programs by moves and rounded steps from anchors of a space, [N, d]."""
        settings, groups = self._settings, self._space.relaxed(number, anchors)
        if not groups and number not in self._lost:
            self._lost.add(number)
            log.warning(
                "policy=gradient: the formulas of design space %d have no derivatives that can be "
                "recorded; single moves in a fixed order and mutations draft it",
                number,
            )
        fixed = torch.as_tensor(anchors, dtype=torch.float64)
        sizes = table.gather(fixed).log()
        mean, square = torch.zeros_like(sizes), torch.zeros_like(sizes)
        found = []
        for step in range(1, settings.steps + 1):
            slope = self._slope(groups, table, fixed, sizes)
            if step == 1:
                found += table.neighbours(slope.numpy(), anchors, settings.moves)
            mean = _BETAS[0] * mean + (1 - _BETAS[0]) * slope
            square = _BETAS[1] * square + (1 - _BETAS[1]) * slope**2
            ratio = math.sqrt(1 - _BETAS[1] ** step) / (1 - _BETAS[0] ** step)
            sizes = sizes + settings.rate * ratio * mean / (square.sqrt() + _EPSILON)
            sizes = table.project(sizes)
            found.append(table.rounded(sizes.numpy(), anchors))
        return np.concatenate(found)

    def _slope(
        self,
        groups: Sequence[tuple[Ints, RelaxedScores]],
        table: _TileTable,
        fixed: Tensor,
        sizes: Tensor,
    ) -> Tensor:
        """Derivative of score less penalty by the logarithms [N, T, P], 0 without any."""
        sizes = sizes.detach().requires_grad_()
        decisions = table.scatter(fixed, sizes.exp())
        total = torch.zeros((), dtype=torch.float64)
        for _, scores in groups:
            score, beyond = scores(decisions)
            total = total + (score - self._settings.penalty * beyond).sum()
        if groups:
            total.backward()
        slope = torch.zeros_like(sizes) if sizes.grad is None else sizes.grad
        return torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)


class _TileTable:
    """The tiles of a design space as a filled table [T, P] of slots."""

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self._tiles = tiles
        most = max(len(tile.slots) for tile in tiles)
        here = [[place < len(t.slots) for place in range(most)] for t in tiles]
        slots = [[*t.slots, *[t.slots[0]] * (most - len(t.slots))] for t in tiles]
        self._slots = torch.as_tensor(slots)
        self._mask = torch.as_tensor(here)
        # (giving slot, taking slot, prime, largest factor that takes, what the rest must be a
        # multiple of, and the places of both slots in the table)
        self._moves = np.array(
            [
                [
                    tile.slots[give],
                    tile.slots[take],
                    prime,
                    tile.limit if take == len(tile.slots) - 1 else tile.extent,
                    tile.least if give == len(tile.slots) - 1 else 1,
                    place * most + give,
                    place * most + take,
                ]
                for place, tile in enumerate(tiles)
                for give, take in permutations(range(len(tile.slots)), 2)
                for prime in tile.primes
            ]
        )
        self._total = torch.tensor([[math.log(t.extent)] for t in tiles], dtype=torch.float64)

    def gather(self, decisions: Tensor) -> Tensor:
        """Factors [N, T, P] of vectors [N, d], 1 where a tile has fewer."""
        return torch.where(self._mask, decisions[:, self._slots], 1.0)

    def scatter(self, decisions: Tensor, factors: Tensor) -> Tensor:
        out = decisions.clone()
        out[:, self._slots[self._mask]] = factors[:, self._mask]
        return out

    def project(self, sizes: Tensor) -> Tensor:
        """Move logarithms to the nearest point of the simplex (Duchi et al., 2008)."""
        values = torch.where(self._mask, sizes, _ABSENT)
        ordered = values.sort(-1, descending=True).values
        places = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64)
        shift = (self._total - ordered.cumsum(-1)) / places
        last = ((ordered + shift) > 0).sum(-1, keepdim=True).clamp(min=1) - 1
        return (values + shift.gather(-1, last)).clamp(min=0.0)

    def neighbours(self, slope: Floats, anchors: Decisions, num: int) -> list[Decisions]:
        """Apply each of the `num` best moves of a prime, by the slope."""
        give, take, prime, limit, least, giver, taker = self._moves.T
        left = anchors[:, give] // prime
        fits = (anchors[:, give] % prime == 0) & (left % least == 0)
        fits &= anchors[:, take] * prime <= limit
        each = slope.reshape(len(anchors), -1)
        gain = np.where(fits, np.log(prime) * (each[:, taker] - each[:, giver]), -np.inf)
        best = np.argsort(-gain, axis=1, kind="stable")[:, :num]
        found, rows = [], np.arange(len(anchors))
        for move in best.T:
            here = rows[np.isfinite(gain[rows, move])]
            moved, number = anchors[here], np.arange(len(here))
            moved[number, give[move[here]]] //= prime[move[here]]
            moved[number, take[move[here]]] *= prime[move[here]]
            found.append(moved)
        return found

    def rounded(self, sizes: Floats, anchors: Decisions) -> Decisions:
        """Round logarithms [N, T, P] to the factors of programs.

        From the innermost outwards, the product so far is the divisor of the extent nearest to the
        sum of the logarithms. Other decisions are the anchors'.
        """
        out = anchors.copy()
        for place, tile in enumerate(self._tiles):
            found = divisors(tile.extent)
            distance = np.log(found)
            product = np.full(len(anchors), tile.least)
            wanted = sizes[:, place, : len(tile.slots)][:, ::-1].cumsum(axis=1)
            for number, slot in enumerate(reversed(tile.slots)):
                fits = found % product[:, None] == 0
                if not number:
                    fits &= found <= max(tile.limit, tile.least)
                if slot == tile.slots[0]:
                    fits &= found == tile.extent
                away = np.where(fits, abs(distance - wanted[:, number, None]), np.inf)
                inside, product = product if number else 1, found[away.argmin(axis=1)]
                out[:, slot] = product // inside
        return out
