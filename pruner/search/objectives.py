"""The objective of a run: small latency, size, energy, or a front.

Latency and size are searched by ParEGO's augmented Tchebycheff scores (Knowles, IEEE Transactions
on Evolutionary Computation 10, 2006); energy: :mod:`pruner.tune.run.final_choice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float

from pruner.arrays import Decisions, Floats, Keys, Scores
from pruner.errors import PrunerError
from pruner.lazy import optional
from pruner.search.explorer import Memoised, NoneFound, ScoreFunction
from pruner.search.policy import (
    NO_KEYS,
    Policy,
    PolicySettings,
    RoundSettings,
    State,
    accepted,
    filled,
)
from pruner.search.space import History

LATENCY, SIZE, ENERGY, EDP = "latency", "size", "energy", "edp"
KNOWN = ((LATENCY,), (LATENCY, SIZE), (ENERGY,), (EDP,), (LATENCY, ENERGY))
_EACH = 4  # programs of a batch that share their weights
_PARTS = 4  # of a usual batch
_SUM = 0.05  # weight of the sum beside the maximum, as in ParEGO

Points = Float[np.ndarray, "program objective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The quantity that a run makes small, or two quantities with a front."""

    names: tuple[str, ...] = (LATENCY,)

    def __post_init__(self) -> None:
        if self.names not in KNOWN:
            known = ", ".join(str(Objective(names=one)) for one in KNOWN)
            raise PrunerError(f"objective={self}: it must be one of {known}")

    def __str__(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"[{','.join(self.names)}]"

    @classmethod
    def of(cls, given: str | Sequence[str]) -> Self:
        """Make the objective of a name or a list of names."""
        return cls(names=(given,) if isinstance(given, str) else tuple(given))

    @property
    def is_latency(self) -> bool:
        """True for latency alone: nothing else is measured or stored."""
        return self.names == (LATENCY,)

    @property
    def has_size(self) -> bool:
        """True if built programs are sized."""
        return SIZE in self.names

    @property
    def has_energy(self) -> bool:
        """True if the joules of programs are counted or modelled."""
        return bool({ENERGY, EDP} & set(self.names))

    @property
    def has_front(self) -> bool:
        """True for two quantities."""
        return len(self.names) > 1


class BlendedScore:
    """A score and the logarithm of the size, blended to one score.

    ``- max(w_i l_i) - 0.05 sum(w_i l_i)``, times the spread of the score. ``l_i`` is the distance
    from the best value in spreads (best to median) of the first call after `begin`.
    """

    def __init__(self, score: ScoreFunction, log_size: ScoreFunction, weight: float = 0.0) -> None:
        self._score, self._log_size = score, log_size
        self.begin(weight)

    def begin(self, weight: float) -> None:
        """Give the size a `weight` in [0, 1]; the score has the rest."""
        self._weight = weight
        self._scales: list[tuple[float, float]] = []  # best value and spread of both

    def __call__(self, decisions: Decisions) -> Scores:
        """Scores [N]; minus infinity where the score is."""
        found = np.asarray(self._score(decisions), np.float64)
        legal = np.isfinite(found)
        if not legal.any():
            return found
        both = [found[legal], self._small(decisions[legal])]
        self._scales = self._scales or [_scale(values) for values in both]
        (best, unit), (best_small, unit_small) = self._scales
        first = (1 - self._weight) * (best - both[0]) / unit
        second = self._weight * (best_small - both[1]) / unit_small
        out = np.full(len(found), -np.inf)
        out[legal] = -unit * (np.maximum(first, second) + _SUM * (first + second))
        return out

    def _small(self, decisions: Decisions) -> Scores:
        """Return minus the log size; the median of the others where it is unknown."""
        small = -self._log_size(decisions)
        known = np.isfinite(small)
        if known.all():
            return small
        return np.where(known, small, np.median(small[known]) if known.any() else 0.0)


def _scale(values: Floats) -> tuple[float, float]:
    best = float(values.max())
    return best, (best - float(np.median(values))) or 1.0


class ParetoPolicy(Policy):
    """A policy whose scores are blended with `size_bytes` of programs (NaN: unknown)."""

    def _begin(self) -> None:
        rounds: RoundSettings = self._settings.settings
        draft, learner, rng = self._draft, self._learner, self._rng
        self._epsilon = rounds.epsilon
        (self._rng,) = rng.spawn(1)
        self._weight = 0.0
        self._log_size: ScoreFunction = self._sizes
        self._blended = None if draft is None else BlendedScore(draft, self._size)
        # every part drafts, since a drafted set of other weights would serve it badly; with smaller
        # populations the parts of a usual batch explore as much together as a batch of the rounds
        most = max(size.population for size in (rounds.draft, rounds.verify) if size)
        # a part is so small that its random share would be rounded to no program
        rounds = replace(rounds, redraft_period=1, epsilon=0.0)
        rounds = rounds.limited(max(1, most // _PARTS), can_draft=True)
        self._policy: Policy = rounds.make(
            self._space, self._blended, None if learner is None else self._learned, rng
        )

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """A few programs for every draw of weights, then the random share."""
        guided = num - int(self._epsilon * num)
        parts = max(1, -(-guided // _EACH))
        # one weight in every interval of equal width: few draws cover the front
        weights = self._rng.permutation((np.arange(parts) + self._rng.random(parts)) / parts)
        self._log_size = Memoised(self._space, self._sizes)
        found = np.zeros((0, self._space.num_slots), np.int64)
        for part, weight in zip(np.array_split(np.arange(guided), parts), weights, strict=True):
            self._weight = float(weight)
            if self._blended is not None:
                self._blended.begin(self._weight)
            known = np.concatenate([pending, self._space.keys(found)])
            try:
                rows = self._policy.propose(len(part), history, known)
            except NoneFound:
                if len(found):
                    break
                raise
            found = np.concatenate([found, rows])
        pool = accepted(self._draft, self._space.sample(3 * num, self._rng))
        return filled(self._space, found, pool, np.concatenate([history.keys, pending]), num)

    def state(self) -> State:
        """See :class:`pruner.search.policy.Policy`."""
        return {**super().state(), "policy": self._policy.state()}

    def load_state(self, state: State) -> None:
        """See :class:`pruner.search.policy.Policy`."""
        super().load_state(state)
        self._policy.load_state(state["policy"])

    def _learned(self, history: History) -> ScoreFunction | None:
        assert self._learner is not None
        score = self._learner(history)
        return None if score is None else BlendedScore(score, self._size, self._weight)

    def _size(self, decisions: Decisions) -> Scores:
        return self._log_size(decisions)

    def _sizes(self, decisions: Decisions) -> Scores:
        return np.log(self._space.size_bytes(decisions))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoSettings(PolicySettings):
    """The rounds of `settings`, for small latency and size; every draw of weights drafts."""

    settings: RoundSettings

    takes_model: ClassVar[bool] = True
    policy: ClassVar = ParetoPolicy

    @property
    def trusts_draft(self) -> bool:
        """See :class:`pruner.search.policy.PolicySettings`."""
        return self.settings.trusts_draft

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`pruner.search.policy.PolicySettings`."""
        return replace(self, settings=self.settings.limited(population, can_draft=can_draft))

    def for_device(self, *, gpu: bool) -> Self:
        """See :class:`pruner.search.policy.PolicySettings`."""
        return replace(self, settings=self.settings.for_device(gpu=gpu))


def dominated(point: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Whether one of the others is at most as large in everything."""
    return any(all(b <= a for a, b in zip(point, one, strict=True)) for one in others)


def non_dominated(points: Points) -> Bool[np.ndarray, " program"]:
    """Mark the points of the front [N], smaller is better; raise `MissingExtra` (pymoo)."""
    out = np.zeros(len(points), bool)
    if len(points):
        library = optional("pymoo.util.nds.non_dominated_sorting", "objectives")
        sorting = library.NonDominatedSorting()
        out[sorting.do(points, only_non_dominated_front=True)] = True
    return out


def check_pymoo() -> None:
    """Raise `MissingExtra` where pymoo is not installed."""
    optional("pymoo.indicators.hv", "objectives")
