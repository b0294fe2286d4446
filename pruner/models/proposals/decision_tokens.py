"""Read a design space as decision tokens with legal options.

A token is a factor of a tile, an index of a categorical, or a compute location. Tokens stand in the
order of the trace; the factors of a tile from the innermost outwards, and the outermost factor is
what remains. A token lists its options for N partly decided programs at once: values, a *prior*
(the probabilities of MetaSchedule's own sampling, zero for illegal values), and columns that
describe each option by numbers. So a model sees no vocabulary of extents, and can score factors of
extents that it never saw.

Legality is exact for single decisions (factors divide what is left, the innermost factor is
limited, fragments are complete, locations exist), and for the number of threads of a block. Other
limits (shared memory, registers) need the whole program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Floats, Ints, Mask

Columns = NDArray[np.float32]

TOKEN_COLUMNS = (
    "is_factor", "is_choice", "is_location",
    "level_0", "level_1", "level_2", "level_3", "parts_2", "parts_3", "parts_4", "parts_5",
    "is_spatial", "is_reduction", "is_last_of_kind", "is_first_of_kind", "is_thread",
    "log2_extent", "log2_even_part", "log2_limit", "log2_options", "log2_largest", "place",
)  # fmt: skip
"""Columns of a token that no program changes: a level counts from the innermost factor, 0."""
OPTION_COLUMNS = (
    "log2_value", "log2_left", "log2_inside", "log2_even_part", "is_one", "takes_all",
    "log2_level", "log2_threads", "is_inline", "is_root", "depth", "height", "share",
    "near_2", "near_4", "near_8", "near_16", "near_32",
)  # fmt: skip
"""Columns of an option; logarithms are divided by `LOG_SCALE`.

``near_8`` falls from 1 to 0 between a factor of 8 and 4 or 16: lanes and warps prefer single sizes.
"""
LOG_SCALE = 2.0
_INLINE, _ROOT = -2, -1  # locations of TVM's traces


@dataclass(frozen=True, slots=True, eq=False)
class TokenOptions:
    """The options of a token for N programs.

    ``values`` [V]; ``prior`` [N, V]: log probabilities, minus infinity for illegal options;
    ``columns`` float32 [N, V, `OPTION_COLUMNS`].
    """

    values: Ints
    prior: Floats
    columns: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadBound:
    """A bound on the threads of a block.

    ``lanes`` times the product of ``slots`` (decided before) and of the factor is at most ``high``;
    with ``closes`` no other factor follows, and it is at least ``low``.
    """

    slots: tuple[int, ...]
    lanes: int
    low: int
    high: int
    closes: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactorToken:
    """A factor of a tile of a loop of ``extent`` iterations.

    ``inner``: slots of the factors inside, decided before; ``peers``: slots of the factors at this
    level and inside, of the earlier tiles of the same kind; ``values``: divisors of the extent;
    ``log_ways`` [V]: log of the number of ways in which the factors outside split each divisor;
    ``multiple``: of what the product of this factor and ``inner`` is a multiple; ``rest``: the slot
    of the outermost factor where this token is the last of its tile, else -1.
    """

    slot: int
    inner: tuple[int, ...]
    peers: tuple[int, ...]
    extent: int
    values: Ints
    log_ways: Floats
    limit: int
    multiple: int = 1
    threads: ThreadBound | None = None
    rest: int = -1
    columns: Columns

    def options(self, rows: Decisions) -> TokenOptions:
        """List the divisors of what the factors inside leave."""
        inside = rows[:, self.inner].prod(axis=1)
        left, here = self.extent // inside, inside[:, None] * self.values
        quotient, remainder = np.divmod(left[:, None], self.values)
        fits = (remainder == 0) & (self.values <= self.limit)
        fits &= here % self.multiple == 0
        threads = np.ones((len(rows), len(self.values)), np.int64)
        if self.threads is not None:
            bound = self.threads
            known = bound.lanes * rows[:, bound.slots].prod(axis=1)
            threads = known[:, None] * self.values
            fits = _where_possible(fits, threads <= bound.high)
            if bound.closes:
                fits = _where_possible(fits, threads >= bound.low)
        ways = self.log_ways[np.searchsorted(self.values, quotient).clip(max=len(self.values) - 1)]
        columns = _columns(
            fits.shape,
            log2_value=np.log2(self.values) / LOG_SCALE,
            log2_left=np.log2(np.maximum(quotient, 1)) / LOG_SCALE,
            log2_inside=np.log2(here) / LOG_SCALE,
            log2_even_part=np.log2(self.values & -self.values) / LOG_SCALE,
            is_one=self.values == 1,
            takes_all=quotient == 1,
            log2_level=np.log2(here * rows[:, self.peers].prod(axis=1)[:, None]) / LOG_SCALE,
            log2_threads=np.log2(threads) / LOG_SCALE,
            **{
                f"near_{1 << power}": np.maximum(0, 1 - np.abs(np.log2(self.values) - power))
                for power in range(1, 6)
            },
        )
        return TokenOptions(self.values, _log_shares(np.where(fits, ways, -np.inf)), columns)

    def decide(self, rows: Decisions, values: Ints) -> None:
        """Write the factors, and the outermost factor after the last."""
        rows[:, self.slot] = values
        if self.rest >= 0:
            rows[:, self.rest] = self.extent // (rows[:, self.inner].prod(axis=1) * values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChoiceToken:
    """An index into ``candidates`` (numbers) with MetaSchedule's ``log_probs``."""

    slot: int
    candidates: Floats
    log_probs: Floats
    columns: Columns

    def options(self, rows: Decisions) -> TokenOptions:
        """List all candidates; each program may have each candidate."""
        num, values = len(self.candidates), np.arange(len(self.candidates))
        columns = _columns(
            (len(rows), num),
            log2_value=np.log2(1 + np.abs(self.candidates)) / LOG_SCALE,
            is_one=values == 0,
            takes_all=values == num - 1,
            share=(values + 1) / num,
        )
        return TokenOptions(values, np.tile(self.log_probs, (len(rows), 1)), columns)

    def decide(self, rows: Decisions, values: Ints) -> None:
        """Write the indices."""
        rows[:, self.slot] = values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocationToken:
    """The location of a block; ``offered``: values [V], and which are legal [N, V]."""

    slot: int
    offered: Callable[[Decisions], tuple[Ints, Mask]]
    columns: Columns

    def options(self, rows: Decisions) -> TokenOptions:
        """List the locations; a program that cannot be replayed keeps its value."""
        values, legal = self.offered(rows)
        if not len(values):
            values, legal = np.zeros(1, np.int64), np.ones((len(rows), 1), bool)
        legal = legal | (~legal.any(axis=1, keepdims=True) & (np.arange(len(values)) == 0))
        loops = legal & (values >= 0)
        rank, number = np.cumsum(loops, axis=1), loops.sum(axis=1, keepdims=True)
        columns = _columns(
            legal.shape,
            is_inline=values == _INLINE,
            is_root=values == _ROOT,
            depth=np.where(loops, rank, 0) / LOG_SCALE,
            height=np.where(loops, number - rank + 1, 0) / LOG_SCALE,
            share=np.where(loops, rank, 0) / np.maximum(number, 1),
        )
        return TokenOptions(values, _log_shares(np.where(legal, 0.0, -np.inf)), columns)

    def decide(self, rows: Decisions, values: Ints) -> None:
        """Write the locations."""
        rows[:, self.slot] = values


Token = FactorToken | ChoiceToken | LocationToken


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSpace:
    """A design space for a proposal model.

    ``start`` int64 [d]: decisions that are no choice; ``columns``: device, operator and
    instructions; ``kind``: equal where two spaces have the same kinds of decisions, so that a model
    is used only where it was trained.
    """

    tokens: tuple[Token, ...]
    start: Ints
    columns: Columns
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequences:
    """N decided programs of a space, as sequences of T tokens.

    V is the largest number of options. ``chosen`` [N, T]: the place of the decided option;
    ``prior`` float32 [N, T, V]; ``columns`` float32 [N, T, V, `OPTION_COLUMNS`].
    """

    space: TokenSpace
    chosen: Ints
    prior: Columns
    columns: Columns


def encode(space: TokenSpace, rows: Decisions) -> tuple[TokenSequences, Mask]:
    """List the options along vectors [N, d]; the second result marks the legal vectors."""
    listed = [token.options(rows) for token in space.tokens]
    legal = np.ones(len(rows), bool)
    places = np.zeros((len(rows), len(listed)), np.int64)
    for number, (token, options) in enumerate(zip(space.tokens, listed, strict=True)):
        found = rows[:, token.slot]
        order = np.argsort(options.values)
        place = order[np.searchsorted(options.values, found, sorter=order).clip(max=len(order) - 1)]
        places[:, number] = place
        legal &= options.values[place] == found
        legal &= np.isfinite(options.prior[np.arange(len(rows)), place])
    most = max((len(options.values) for options in listed), default=1)
    num = int(legal.sum())
    prior = np.full((num, len(listed), most), -np.inf, np.float32)
    columns = np.zeros((num, len(listed), most, len(OPTION_COLUMNS)), np.float32)
    for number, options in enumerate(listed):
        prior[:, number, : len(options.values)] = options.prior[legal]
        columns[:, number, : len(options.values)] = options.columns[legal]
    return TokenSequences(space, places[legal], prior, columns), legal


def log_ways(
    values: Ints, parts: int, powers: Callable[[int], Sequence[tuple[int, int]]]
) -> Floats:
    """Count ordered factorisations of each value into `parts` factors, as logs.

    Stars and bars over the exponents of each prime; without parts, 1 has one way, others none.
    """
    if not parts:
        return np.where(values == 1, 0.0, -np.inf)
    out = np.zeros(len(values))
    for place, value in enumerate(values.tolist()):
        for _, power in powers(value):
            steps = np.arange(1, parts)
            out[place] += np.log((power + steps) / steps).sum()
    return out


def token_columns(**values: float) -> Columns:
    """Make the columns of a token by name; the others are 0."""
    out = np.zeros(len(TOKEN_COLUMNS), np.float32)
    for name, value in values.items():
        out[TOKEN_COLUMNS.index(name)] = value
    return out


def _where_possible(fits: Mask, also: Mask) -> Mask:
    """Narrow the options of the programs that keep an option by it."""
    both = fits & also
    return np.where(both.any(axis=1, keepdims=True), both, fits)


def _log_shares(weights: Floats) -> Floats:
    top = weights.max(axis=1, keepdims=True)
    return weights - top - np.log(np.exp(weights - top).sum(axis=1, keepdims=True))


def _columns(shape: tuple[int, ...], **values: NDArray[Any]) -> Columns:
    """Make columns [N, V, column]; columns without values are 0."""
    out = np.zeros((*shape, len(OPTION_COLUMNS)), np.float32)
    for name, value in values.items():
        out[..., OPTION_COLUMNS.index(name)] = value
    return out
