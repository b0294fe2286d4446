"""Policies: ``propose`` what to measure next, from what was measured so far.

`DraftThenVerify` is the round of Pruner (docs/paper.md section 3), and without a draft the round of
Ansor: evolution with the learned model as fitness. `RandomPolicy` draws. Both take any score
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Keys, Scores
from pruner.search.explorer import ExplorerSettings, Memoised, ScoreFunction, explore
from pruner.search.history import History
from pruner.search.space import SearchSpace, unique_rows

# From all measured programs to a score function, once a round; None: nothing to learn from yet.
Learner = Callable[[History], ScoreFunction | None]


NO_KEYS: Keys = np.zeros(0, np.int64)

State = Mapping[str, Any]  # arrays, plain values, mappings and lists of them


class Policy(Protocol):
    """What spends a measurement budget."""

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """At most `num` vectors that were not measured yet and whose keys are not `pending`."""

    def state(self) -> State:
        """What it needs besides the history to go on exactly."""

    def load_state(self, state: State) -> None:
        """Take back what `state` returned."""


class PolicySettings(Protocol):
    """What ``conf/policy`` holds: settings that make their own policy.

    ``takes_model``: a learned model can judge for it; ``trusts_draft``: what it measures first is
    what the draft ranks best. A new policy is its settings and their
    methods; nobody else asks which one it is.
    """

    takes_model: ClassVar[bool]

    @property
    def trusts_draft(self) -> bool:
        """See above."""

    def make(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        rng: np.random.Generator,
    ) -> Policy:
        """The policy in a space; `draft` is minus infinity for what must not be proposed, None
        where everything may be."""

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """The same search with at most `population` programs a generation, for a space that takes
        milliseconds a program; with ``can_draft=False`` no draft tells its programs apart."""


_DRAFT = ExplorerSettings(population=1536, generations=2, keep=512)
_VERIFY = ExplorerSettings(population=1536, generations=1, keep=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """One tuning round. Defaults: the public release (docs/paper.md section 3).

    ``draft=None``: no round drafts, as in Ansor. The other presets are files of ``conf/policy``.
    """

    draft: ExplorerSettings | None = _DRAFT
    verify: ExplorerSettings = _VERIFY
    random_sample: int = 1536
    redraft_period: int = 2  # rounds between drafts
    measured_share: float = 0.1  # best measured programs in the verified population
    epsilon: float = 0.1  # share of a batch that is random
    verify_only_draft: bool = False  # score the drafted set and the randoms, no evolution
    prior: float = 0.0  # measurements that the draft's score is worth beside the learned one's
    draft_leads: bool = False  # without a model yet, the best drafted; else chance among them

    takes_model: ClassVar[bool] = True

    @property
    def trusts_draft(self) -> bool:
        """See :class:`PolicySettings`."""
        return self.draft is not None and self.draft_leads

    def make(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        rng: np.random.Generator,
    ) -> DraftThenVerify:
        """See :class:`PolicySettings`."""
        return DraftThenVerify(space, draft, learner, self, rng)

    def limited(self, population: int, *, can_draft: bool) -> RoundSettings:
        """See :class:`PolicySettings`."""

        def fewer(explorer: ExplorerSettings) -> ExplorerSettings:
            return replace(explorer, population=min(population, explorer.population))

        draft = None if self.draft is None else fewer(self.draft)
        if draft is not None and not can_draft:
            draft = replace(draft, generations=0)
        return replace(
            self,
            draft=draft,
            verify=fewer(self.verify),
            random_sample=min(population, self.random_sample),
        )


def fresh(space: SearchSpace, decisions: Decisions, seen: Keys, num: int) -> Decisions:
    """The first `num` distinct rows that are not among the keys `seen`."""
    keys = space.keys(decisions)
    rows = unique_rows(keys)
    return decisions[rows[~np.isin(keys[rows], seen)][:num]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDraws:
    """Random programs that are legal, without model; it avoids what earlier failures taught."""

    draws: int = 128  # at once, of which the first new ones are measured

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    def make(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        rng: np.random.Generator,
    ) -> RandomPolicy:
        """See :class:`PolicySettings`; it asks no learner."""
        return RandomPolicy(space, rng, accept=draft, draws=self.draws)

    def limited(self, population: int, *, can_draft: bool) -> RandomDraws:
        """See :class:`PolicySettings`."""
        return replace(self, draws=min(population, self.draws))


class RandomPolicy:
    """Uniform draws without repetition."""

    def __init__(
        self,
        space: SearchSpace,
        rng: np.random.Generator,
        *,
        accept: ScoreFunction | None = None,
        draws: int = 512,
    ) -> None:
        self._space, self._rng, self._accept, self._draws = space, rng, accept, draws

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`Policy`."""
        drawn = self._space.sample(max(self._draws, num), self._rng)
        drawn = accepted(self._accept, drawn)
        return fresh(self._space, drawn, np.concatenate([history.keys, pending]), num)

    def state(self) -> State:
        """See :class:`Policy`."""
        return {"rng": self._rng.bit_generator.state}

    def load_state(self, state: State) -> None:
        """See :class:`Policy`."""
        self._rng.bit_generator.state = state["rng"]


class DraftThenVerify:
    """Draft a set with the cheap score, verify it with the learned one, measure the best.

    ``draft=None`` skips the draft: then this is evolution with the learned model alone;
    ``learner=None`` measures what the draft ranks best, without a learned model. While the
    learner has nothing to learn from, chance decides among the drafted ones, or with `draft_leads`
    the draft's score.
    """

    def __init__(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        settings: RoundSettings,
        rng: np.random.Generator,
    ) -> None:
        self._space, self._draft, self._learner = space, draft, learner
        self._settings, self._rng = settings, rng
        self._round = 0
        self._drafted = np.zeros((0, space.num_slots), np.int64)

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`Policy`."""
        settings, seen = self._settings, np.concatenate([history.keys, pending])
        draft = model = None if self._draft is None else Memoised(self._space, self._draft)
        if self._learner is not None:  # here: the last batch needs no model
            learned = self._learner(history)
            model = None if learned is None else Memoised(self._space, learned)
        how = settings.draft
        if draft is None or self._round % settings.redraft_period:
            how = None
        # One draw for both: a live space costs as much for a few programs as for many.
        number = settings.random_sample
        drawn = self._space.sample(number + (how.population if how else 0), self._rng)
        sample, start = drawn[:number], drawn[number:]
        if draft is not None and how is not None:
            drafted = explore(self._space, draft, how, self._rng, start=start, exclude=seen)
            self._drafted = drafted.decisions
        self._round += 1
        best = history.best(int(settings.measured_share * settings.verify.population))
        population = np.concatenate([self._drafted, sample, best])
        num_random = int(settings.epsilon * num)
        judge = self._judge(draft, model, population, history)
        if judge is None:  # nothing to verify with: spread over the draft, as the release
            known = self._drafted if len(self._drafted) else population
            known = self._rng.permutation(accepted(draft, known))
            chosen = fresh(self._space, known, seen, num - num_random)
        else:
            chosen = self._verified(judge, population, num - num_random, seen)
        pool = accepted(draft, self._space.sample(3 * num, self._rng))
        rest = fresh(
            self._space, pool, np.concatenate([seen, self._space.keys(chosen)]), num - len(chosen)
        )
        return np.concatenate([chosen, rest])

    def state(self) -> State:
        """See :class:`Policy`."""
        rng = self._rng.bit_generator.state
        return {"rng": rng, "round": self._round, "drafted": self._drafted}

    def load_state(self, state: State) -> None:
        """See :class:`Policy`."""
        self._rng.bit_generator.state = state["rng"]
        self._round, self._drafted = int(state["round"]), state["drafted"]

    def _judge(
        self,
        draft: ScoreFunction | None,
        model: ScoreFunction | None,
        seen: Decisions,
        history: History,
    ) -> ScoreFunction | None:
        """What verifies: the learned score, minus infinity for what the draft says is illegal.

        With a prior both count: see :func:`weighed`. None: nothing to verify with yet.
        """
        prior = self._settings.prior
        if draft is None or model is draft:
            return model
        if model is None:
            return draft if self._settings.draft_leads else None
        if not prior:
            return guard(model, draft)
        return weighed(model, draft, seen, prior=prior, latency_s=history.latency_s)

    def _verified(
        self, judge: ScoreFunction, population: Decisions, num: int, seen: Keys
    ) -> Decisions:
        how = self._settings.verify
        if self._settings.verify_only_draft:
            how = replace(how, generations=0)
        found = explore(self._space, judge, how, self._rng, start=population, exclude=seen)
        return found.decisions[:num]


def accepted(score: ScoreFunction | None, decisions: Decisions) -> Decisions:
    """The vectors whose score is finite; all of them without a score."""
    return decisions if score is None else decisions[np.isfinite(score(decisions))]


def weighed(
    model: ScoreFunction,
    draft: ScoreFunction,
    seen: Decisions,
    *,
    prior: float,
    latency_s: NDArray[np.float64],
) -> ScoreFunction:
    """Standard scores (of `seen`), the draft's weighing ``prior / (prior + measured)``.

    Ours: a model that has seen a few dozen programs orders them worse than the analyzer does.
    `latency_s` of what was measured, where failures do not count.
    """
    measured = np.isfinite(latency_s).sum()
    learned, drafted = standard(model, seen), standard(draft, seen)
    if not measured:  # and nothing times minus infinity is no score
        return drafted
    weight = prior / (prior + measured)
    return lambda wanted: (1 - weight) * learned(wanted) + weight * drafted(wanted)


def standard(score: ScoreFunction, seen: Decisions) -> ScoreFunction:
    """A score in standard deviations of what it gives the legal programs among `seen`."""
    values = score(seen)
    values = values[np.isfinite(values)]
    center, spread = (values.mean(), values.std() or 1.0) if len(values) else (0.0, 1.0)
    return lambda wanted: (score(wanted) - center) / spread


def guard(score: ScoreFunction, draft: ScoreFunction | None) -> ScoreFunction:
    """The learned score, minus infinity where the draft says illegal."""
    if draft is None:
        return score

    def guarded(decisions: Decisions) -> Scores:
        return np.where(np.isfinite(draft(decisions)), score(decisions), -np.inf)

    return guarded
