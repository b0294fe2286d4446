"""Construct programs from tiles that fit the device, after Roller (OSDI'22).

From the source (Zhu et al.): tiles agree with the units of the device; a tile is enlarged, level by
level outwards, along the axis that buys the most data reuse, until its memory is full; the rest is
distributed over the cores; a formula ranks the programs, and nothing is measured. Differences:
tiles divide their loops; the analyzer is the performance model and chooses the decisions that are
no tiles; a beam of tiles is enlarged, half of it selected by the predicted time; the last stage
enlarges any factor while that falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pruner.arrays import Decisions, Floats, Ints, Keys, Mask, Scores
from pruner.errors import PrunerError
from pruner.features.symbols.symbol_table import PerProgram, Symbols
from pruner.models.analyzer.analyzer import SymbolAnalyzer
from pruner.program.device import CpuDevice, Device
from pruner.search.explorer import NoneFound, ScoreFunction
from pruner.search.failures import FailureModel
from pruner.search.policy import NO_KEYS, Policy, PolicySettings, State, accepted, fresh
from pruner.search.space import History, RowKeys, unique_rows

# The costs of a program: loads or bytes that each level moves, and last the predicted seconds.
Costs = Floats  # [level + 1, program]
CPU_LEVELS = ("registers", "l1", "l2")
GPU_LEVELS = ("registers", "shared")
_GAIN = 1e-9  # least share by which a step must lower the cost
_DIGITS = 9  # of scores that count as equal
_WINDOW = 64  # programs whose draft scores are computed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The factors of a loop of ``extent`` iterations, the outermost first.

    ``slots``: their decisions; ``levels``: the level of each factor, "" for the outermost factor
    and for factors that only the analyzer judges; ``primes`` of the extent; ``limit`` of the
    innermost factor; ``least``: what the innermost factor must be a multiple of.
    """

    slots: range
    extent: int
    levels: tuple[str, ...]
    primes: tuple[int, ...]
    limit: int
    least: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A condition on aligned programs: the product of ``slots`` is a multiple of ``size``."""

    slots: tuple[int, ...]
    size: int

    def holds(self, decisions: Decisions) -> Mask:
        """Check which programs are aligned, bool [N]."""
        return np.asarray(decisions[:, self.slots].prod(axis=1) % self.size == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The tiles of a design space and the units that they are aligned with.

    ``others``: slots of decisions that are no tiles, in the order of the trace; ``start``: the unit
    that the smallest tile fills, with a product of at least ``least``.
    """

    tiles: tuple[Tile, ...]
    others: tuple[int, ...]
    units: tuple[Unit, ...]
    start: Unit | None = None
    least: int = 1


def tilings_of(space: Any, no_tiles: str, no_symbols: str, replayed: str) -> list[Tiling | None]:
    """The tiles of each design space; raise `PrunerError` with the message for what lacks."""
    if not hasattr(space, "relaxed"):
        raise PrunerError(no_tiles)
    if not isinstance(space.analyzer, SymbolAnalyzer):
        raise PrunerError(no_symbols)
    tilings = [one.tiling(space.analyzer.device) for one in space.spaces]
    if not any(tilings):
        raise PrunerError(replayed)
    return tilings


class ConstructPolicy(Policy):
    """Propose the constructed programs in the order of the analyzer's scores.

    First comes the best program of every tile (a single tile of equal scores). The order depends on
    the space alone, so a resumed run constructs it again. Where only probable failures are left,
    the least probable come first.
    """

    def _begin(self) -> None:
        space = self._space
        tilings = tilings_of(
            space,
            "policy=construct needs the tiles of a design space, and recorded programs have none; "
            "use policy=random or policy=pruner_live",
            "policy=construct needs the symbols of the analyzer; use draft.form=hardware",
            "policy=construct needs tiles, and TVM replays all design spaces of this task, so "
            "their tiles are not known; use policy=pruner_live",
        )
        self._builders = [
            _Builder(space, number, tiling, space.analyzer.device, self._settings)
            for number, tiling in enumerate(tilings)
            if tiling is not None
        ]
        self._order: Decisions | None = None  # on first use: it takes a second

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`pruner.search.policy.Policy`; raise `NoneFound` at the end."""
        if self._order is None:
            self._order = self._constructed()
        seen = np.concatenate([history.keys, pending])
        rest = fresh(history.space, self._order, seen, len(self._order))
        chosen = _first_accepted(self._draft, rest, num)
        if not len(chosen) and isinstance(self._draft, FailureModel):
            # Constructed programs are neighbours, so that after many failures all look bad.
            risk = self._draft.probability(rest)
            chosen = _first_accepted(self._draft.score, rest[np.argsort(risk, kind="stable")], num)
        if not len(chosen):
            raise NoneFound(
                "policy=construct has no other program"
                if len(rest) < len(self._order)
                else "policy=construct finds no aligned program that is legal; use "
                "policy=pruner_live"
            )
        return chosen

    def state(self) -> State:
        """See :class:`pruner.search.policy.Policy`; the history has everything."""
        return {}

    def load_state(self, state: State) -> None:
        """See :class:`pruner.search.policy.Policy`."""

    def _constructed(self) -> Decisions:
        found = [builder.programs() for builder in self._builders]
        rows, score, later = (np.concatenate(parts) for parts in zip(*found, strict=True))
        # Of tiles with equal scores a batch needs only the first: the analyzer sees no difference.
        order = np.lexsort((-score, later))
        alike = np.diff(np.round(score[order], _DIGITS), prepend=np.inf) == 0
        return rows[order[np.argsort(later[order] | alike, kind="stable")]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructSettings(PolicySettings):
    """Settings of the construction.

    ``beam``: tiles of a size that are enlarged at each step; ``keep``: tiles of a design space
    whose other decisions are chosen.
    """

    beam: int = 8
    keep: int = 128

    policy: ClassVar = ConstructPolicy

    def __post_init__(self) -> None:
        if min(self.beam, self.keep) < 1:
            raise PrunerError("policy.beam and policy.keep must be at least 1")


def _first_accepted(score: ScoreFunction | None, rows: Decisions, num: int) -> Decisions:
    chosen = rows[:0]
    for start in range(0, len(rows), _WINDOW):
        chosen = np.concatenate([chosen, accepted(score, rows[start : start + _WINDOW])])
        if len(chosen) >= num:
            break
    return chosen[:num]


class _Builder:
    """Construct the programs of a design space."""

    def __init__(
        self,
        space: Any,
        number: int,
        tiling: Tiling,
        device: Device,
        settings: ConstructSettings,
    ) -> None:
        self._space, self._number, self.tiling = space, number, tiling
        self._num_slots: int = space.spaces[number].num_slots
        self._settings = settings
        self._keys = RowKeys(self._num_slots)
        self._levels = CPU_LEVELS if isinstance(device, CpuDevice) else GPU_LEVELS

    def _tiles(self) -> Decisions:
        """Aligned programs with different tiles, the best by the analyzer first."""
        rows = self._chosen(self._smallest())[0]
        score, costs = self._judged(rows)
        found = []
        for place, level in enumerate(self._levels):
            rows, score, costs = self._enlarged_all(rows, score, costs, place, level)
            found.append((rows, score))
            best = self._best(rows, score, costs[place])
            rows, score, costs = rows[best], score[best], costs[:, best]
        # at the end any factor may grow where the analyzer predicts less time
        rows = np.concatenate([rows, self._on_one_core(rows)])
        rows = self._chosen(rows[unique_rows(self._keys(rows))])[0]
        rows, score, _ = self._enlarged_all(rows, *self._judged(rows), len(self._levels), None)
        found.append((rows, score))
        rows, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
        good = np.flatnonzero(np.isfinite(score) & self._aligned(rows))
        rows = rows[good[np.argsort(-score[good], kind="stable")]]
        rows[:, self.tiling.others] = self._smallest()[:1, self.tiling.others]
        return rows[unique_rows(self._keys(rows))[: self._settings.keep]]

    def programs(self) -> tuple[Decisions, Scores, Mask]:
        """Return vectors of the task, scores, and whether a better program has equal tiles."""
        tiles = self._tiles()
        each = max(1, self._settings.keep // max(len(tiles), 1))
        best, found, score = self._chosen(tiles, each)
        legal = np.flatnonzero(np.isfinite(score))
        legal = legal[unique_rows(self._keys(found[legal]))]
        rows = np.zeros((len(legal), self._space.num_slots), np.int64)
        rows[:, 0] = self._number
        rows[:, 1 : 1 + self._num_slots] = found[legal]
        later = ~np.isin(self._keys(found[legal]), self._keys(best))
        return rows, score[legal], later

    def _smallest(self) -> Decisions:
        """The smallest aligned programs: everything else in the outermost loops."""
        row = np.zeros((1, self._num_slots), np.int64)
        for tile in self.tiling.tiles:
            row[:, tile.slots] = 1
            row[:, tile.slots[0]] = tile.extent // tile.least
            row[:, tile.slots[-1]] *= tile.least
        for slot in self.tiling.others:
            values, offered = self._space.options(self._number, row, slot)
            row[:, slot] = values[np.argmax(offered[0])] if len(values) else 0
        start, rows = self.tiling.start, row
        if start is None:
            return row
        size = start.size
        while size > 1:
            prime = next(number for number in range(2, size + 1) if size % number == 0)
            rows, _ = self._enlarged(rows, start.slots, np.zeros(len(rows)), only=prime)
            size //= prime
        while (few := rows[:, start.slots].prod(axis=1) < self.tiling.least).any():
            more, _ = self._enlarged(rows[few], start.slots, np.zeros(few.sum()))
            rows = np.concatenate([rows[~few], more])
        return rows

    def _on_one_core(self, rows: Decisions) -> Decisions:
        """Move iterations of shared loops inwards: tiny programs gain without a parallel region."""
        rows = rows.copy()
        for tile in self.tiling.tiles:
            if CPU_LEVELS[-1] in tile.levels:
                inner = tile.slots[tile.levels.index(CPU_LEVELS[-1])]
                rows[:, inner] *= rows[:, tile.slots[0]]
                rows[:, tile.slots[0]] = 1
        return rows

    def _aligned(self, rows: Decisions) -> Mask:
        aligned = np.ones(len(rows), bool)
        for unit in self.tiling.units:
            aligned &= unit.holds(rows)
        return aligned

    def _best(self, rows: Decisions, score: Scores, cost: Scores) -> Ints:
        """Select a beam of programs of each size, half by score, half by cost."""
        size = rows[:, [tile.slots[0] for tile in self.tiling.tiles]].prod(axis=1)
        apart = ~self._aligned(rows)
        with np.errstate(divide="ignore"):  # programs without traffic at this level
            alike = np.stack([size, apart, score, np.log(cost)]).round(_DIGITS)
        kept = np.unique(alike, axis=1, return_index=True)[1]
        kept.sort()  # of programs with equal size, alignment, score and cost the first
        size, apart, score, cost = size[kept], apart[kept], score[kept], cost[kept]
        half = -(-self._settings.beam // 2)
        found = []
        for keys in ((-score, apart, size), (-score, cost, apart, size)):
            order = np.lexsort(keys)
            rank = np.arange(len(order)) - np.searchsorted(size[order], size[order])
            found.append(order[rank < half])
        return kept[np.unique(np.concatenate(found))]

    def _enlarged_all(
        self, rows: Decisions, score: Scores, costs: Costs, place: int, level: str | None
    ) -> tuple[Decisions, Scores, Costs]:
        """Enlarge factors of a level (None: all) while it lowers the cost at ``place``."""
        slots = [
            slot
            for tile in self.tiling.tiles
            for slot, its in zip(tile.slots[1:], tile.levels[1:], strict=True)
            if level in (its, None)
        ]
        found = [(rows, score, costs)]
        while len(rows):
            children, cost = self._enlarged(rows, slots, costs[place])
            score, costs = self._judged(children)
            gains = costs[place] < cost * (1 - _GAIN)
            children, score, costs = children[gains], score[gains], costs[:, gains]
            best = self._best(children, score, costs[place])
            rows, score, costs = children[best], score[best], costs[:, best]
            found.append((rows, score, costs))
        every = list(zip(*found, strict=True))
        return np.concatenate(every[0]), np.concatenate(every[1]), np.concatenate(every[2], axis=1)

    def _enlarged(
        self, rows: Decisions, slots: Sequence[int], cost: Scores, only: int | None = None
    ) -> tuple[Decisions, Scores]:
        """Move a prime (``only``: this) outwards in; return programs, highest parents' cost."""
        found, parents = [rows[:0]], [np.zeros(0, np.int64)]
        for tile in self.tiling.tiles:
            first, last = tile.slots[0], tile.slots[-1]
            for slot in set(slots) & set(tile.slots[1:]):
                for prime in tile.primes if only is None else (only,):
                    fits = rows[:, first] % prime == 0
                    if slot == last:
                        fits &= rows[:, slot] * prime <= tile.limit
                    children = rows[fits]
                    children[:, first] //= prime
                    children[:, slot] *= prime
                    found.append(children)
                    parents.append(np.flatnonzero(fits))
        children = np.concatenate(found)
        _, places, same = np.unique(self._keys(children), return_index=True, return_inverse=True)
        highest = np.zeros(len(places))
        np.maximum.at(highest, same, cost[np.concatenate(parents)])
        order = np.argsort(places)
        return children[places[order]], highest[order]

    def _chosen(self, tiles: Decisions, each: int = 1) -> tuple[Decisions, Decisions, Scores]:
        """Choose the decisions that are no tiles by the analyzer, one after the other.

        The `each` best programs of a tile stay. Returns the best program of each tile, all that
        were tried, and their scores.
        """
        rows, tile = tiles, np.arange(len(tiles))
        if not self.tiling.others:
            return rows, rows, self._judged(rows)[0]
        found, scores = [], []
        for slot in self.tiling.others:
            values, offered = self._space.options(self._number, rows, slot)
            row, column = np.nonzero(offered)
            rows, tile = rows[row], tile[row]
            rows[:, slot] = values[column]
            score = self._judged(rows)[0]
            found.append(rows)
            scores.append(score)
            # Of equal scores the last: the largest unroll depth leaves room for larger tiles.
            order = np.lexsort((-column, -score, tile))
            first = np.searchsorted(tile[order], tile[order])
            order = order[np.arange(len(order)) - first < each]
            rows, tile = rows[order], tile[order]
        best = np.unique(tile, return_index=True)[1]
        return rows[best], np.concatenate(found), np.concatenate(scores)

    def _judged(self, rows: Decisions) -> tuple[Scores, Costs]:
        score = np.full(len(rows), -np.inf)
        costs = np.full((len(self._levels) + 1, len(rows)), np.inf)
        for some, scores, symbols in self._space.symbols(self._number, rows):
            score[some] = scores
            moved = [_moved(symbols, level) for level in self._levels]
            costs[:, some] = np.where(np.isfinite(scores), [*moved, np.exp(-scores)], np.inf)
        return score, costs


def _moved(symbols: Symbols, level: str) -> PerProgram:
    """Loads (registers) or bytes (other levels) that a program moves into a level, [N]."""
    if level == "shared":
        moved = symbols["l2_mem_footprint"] * symbols["global_bytes"]
    elif level != "registers":
        moved = symbols[f"{level}_traffic"]
    elif any(column.name == "shared_loads" for column in symbols.columns):
        loads = symbols["shared_loads"] + symbols["global_loads"]
        moved = loads * symbols["l1_para_info"] * symbols["l2_para_info"]
    else:
        moved = symbols["vector_loads"] + symbols["scalar_loads"]
    return np.asarray(moved.sum(axis=0))
