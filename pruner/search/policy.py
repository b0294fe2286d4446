"""Policies: propose the programs to measure next from the history.

`DraftThenVerify` is the round of Pruner (docs/paper.md section 3), and without a draft the round of
Ansor: evolution with the learned model as fitness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from pruner.arrays import Decisions, Floats, Keys, Scores
from pruner.errors import PrunerError
from pruner.search.explorer import MUTATED, ExplorerSettings, Memoised, ScoreFunction, explore, kept
from pruner.search.space import History, SearchSpace, unique_rows

# From all measured programs to a score function, once a round; None: nothing to learn from yet.
Learner = Callable[[History], ScoreFunction | None]


NO_KEYS: Keys = np.zeros(0, np.int64)

State = Mapping[str, Any]  # arrays, plain values, mappings and lists of them


class Policy:
    """Chooses the programs on which the measurement budget is spent."""

    def __init__(
        self,
        space: Any,
        draft: ScoreFunction | None,
        learner: Learner | None,
        settings: Any,
        rng: np.random.Generator,
    ) -> None:
        """`draft` (None: all may be) is minus infinity for forbidden programs."""
        self._space, self._draft, self._learner = space, draft, learner
        self._settings, self._rng = settings, rng
        self._begin()

    def _begin(self) -> None:
        """Hook: prepare the proposals; raise `PrunerError` for a space that does not fit."""

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """At most `num` new vectors whose keys are not `pending`."""
        raise NotImplementedError

    def state(self) -> State:
        """The state, besides the history, that a resumed run restores."""
        return {"rng": self._rng.bit_generator.state}

    def load_state(self, state: State) -> None:
        """Restore `state`."""
        self._rng.bit_generator.state = state["rng"]


class PolicySettings:
    """Settings of ``conf/policy``, which make their own policy; no other code tests types.

    ``takes_model``: the policy can use a learned model; ``policy``: its class.
    """

    __slots__ = ()
    takes_model: ClassVar[bool] = False
    policy: ClassVar[type[Policy]] = Policy

    @property
    def trusts_draft(self) -> bool:
        """Whether the first measured programs are the draft's best."""
        return False

    def make(
        self,
        space: SearchSpace,
        draft: ScoreFunction | None,
        learner: Learner | None,
        rng: np.random.Generator,
    ) -> Policy:
        """Make a policy, see :class:`Policy`."""
        return self.policy(space, draft, learner, self, rng)

    def for_device(self, *, gpu: bool) -> Self:
        """Fill in the defaults that differ between GPUs and CPUs."""
        return self

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """The same search with at most `population` programs a generation.

        For spaces of milliseconds a program; ``can_draft=False``: no draft score differs there.
        """
        return self


_DRAFT = ExplorerSettings(population=1536, generations=2, keep=512)
_VERIFY = ExplorerSettings(population=1536, generations=1, keep=64)
_FIRST_APART_GPU = 0.2  # chosen on half of the workloads of three GPUs


def fresh(space: SearchSpace, decisions: Decisions, seen: Keys, num: int) -> Decisions:
    """The first `num` distinct rows whose keys are not in `seen`."""
    keys = space.keys(decisions)
    rows = unique_rows(keys)
    return decisions[rows[~np.isin(keys[rows], seen)][:num]]


def filled(
    space: SearchSpace, chosen: Decisions, pool: Decisions, seen: Keys, num: int
) -> Decisions:
    """The chosen rows, up to `num` with the first fresh rows of a pool."""
    seen = np.concatenate([seen, space.keys(chosen)])
    return np.concatenate([chosen, fresh(space, pool, seen, num - len(chosen))])


class RandomPolicy(Policy):
    """Uniform draws without repetition, of finite `draft` score; nothing is learned."""

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`Policy`."""
        seen = np.concatenate([history.keys, pending])
        return fresh(self._space, self._legal(max(self._settings.draws, num)), seen, num)

    def _legal(self, num: int) -> Decisions:
        return accepted(self._draft, self._space.sample(num, self._rng))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDraws(PolicySettings):
    """Settings of random search over legal programs that probably do not fail."""

    draws: int = 128  # drawn at once; the first new programs are measured

    policy: ClassVar = RandomPolicy

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`PolicySettings`."""
        return replace(self, draws=min(population, self.draws))


class DraftThenVerify(Policy):
    """Draft with the cheap score, verify with the learned score, measure.

    Without a draft this is evolution with the learned model alone; without a learner the best
    drafted programs are measured. While the learner has no data, programs are random of the drafted
    set, or with `draft_leads` the best of it.
    """

    _settings: RoundSettings

    def _begin(self) -> None:
        self._round = 0
        self._drafted = np.zeros((0, self._space.num_slots), np.int64)
        self._led = self._drafted  # programs that the draft led to
        self._proposer = None
        if self._settings.first == "lm":
            # here: it imports torch, which workers do without
            from pruner.search.propose_lm import Proposer, proposal_model

            self._proposer = Proposer(self._space, proposal_model(None))

    def propose(self, num: int, history: History, pending: Keys = NO_KEYS) -> Decisions:
        """See :class:`Policy`."""
        settings, seen = self._settings, np.concatenate([history.keys, pending])
        draft = model = None if self._draft is None else Memoised(self._space, self._draft)
        # fitted here, not in observe: after the last batch no model is needed
        if self._learner is not None:
            learned = self._learner(history)
            model = None if learned is None else Memoised(self._space, learned)
        how = settings.draft
        # As `potential_space_iter` of the release: a drafted set serves `redraft_period` rounds.
        if draft is None or self._round % settings.redraft_period:
            how = None
        # One draw for both: in a live space few programs cost as much as many.
        number = settings.random_sample
        size = how.population if how else 0
        model_draws = size if self._proposer is not None else 0
        drawn = self._space.sample(number + size - model_draws, self._rng)
        sample, start = drawn[:number], drawn[number:]
        if self._proposer is not None and size:
            start = self._proposer.sample(size, self._rng)[0]
            if len(start) < size:  # too few of the model's programs are legal
                more = self._space.sample(size - len(start), self._rng)
                start = np.concatenate([start, more])
        if draft is not None and how is not None:
            self._drafted = self._explored(draft, how.keeping(num), start, seen)
        self._round += 1
        # Ansor's use_measured_ratio: measured programs are parents, not part of the batch.
        best = history.best(int(settings.measured_share * settings.verify.population))
        population = np.concatenate([self._drafted, sample, best])
        # Rounded down as Ansor does: 1 of 10 is random here, 0 of 10 with Ansor's own 0.05.
        num_random = int(settings.epsilon * num)
        judge = self._judge(draft, model, population, history)
        # no score to verify with: random programs of the drafted set, as in the release
        if judge is None:
            known = self._drafted if len(self._drafted) else population
            known = self._rng.permutation(accepted(draft, known))
            chosen = fresh(self._space, known, seen, num - num_random)
        else:
            apart = settings.first_apart or 0.0 if judge is draft else 0.0
            chosen = self._verified(judge, population, num - num_random, seen, apart)
            if apart:  # a batch ahead is chosen before the results of this one
                self._led = np.concatenate([self._led, chosen])
        # The release draws its random share from the population; ours is newly sampled.
        pool = accepted(draft, self._space.sample(3 * num, self._rng))
        return filled(self._space, chosen, pool, seen, num)

    def _explored(
        self, draft: ScoreFunction, how: ExplorerSettings, start: Decisions, seen: Keys
    ) -> Decisions:
        return explore(self._space, draft, how, self._rng, start=start, exclude=seen).decisions

    def state(self) -> State:
        """See :class:`Policy`."""
        own = {"round": self._round, "drafted": self._drafted, "led": self._led}
        return {**super().state(), **own}

    def load_state(self, state: State) -> None:
        """See :class:`Policy`."""
        super().load_state(state)
        self._round, self._drafted = int(state["round"]), state["drafted"]
        self._led = state.get("led", self._led)  # earlier versions had none

    def _judge(
        self,
        draft: ScoreFunction | None,
        model: ScoreFunction | None,
        seen: Decisions,
        history: History,
    ) -> ScoreFunction | None:
        """The score that verifies, minus infinity for illegal programs; None: none yet."""
        prior = self._settings.prior
        if draft is None or model is draft:
            return model
        if model is None:
            return draft if self._settings.draft_leads else None
        if not prior:
            return guard(model, draft)
        return weighed(model, draft, seen, prior=prior, latency_s=history.latency_s)

    def _verified(
        self, judge: ScoreFunction, population: Decisions, num: int, seen: Keys, apart: float
    ) -> Decisions:
        how = self._settings.verify.keeping(num)
        if apart:
            # The draft's first programs are near-copies: without a choice among all of them,
            # several measurements show no more than a single one.
            how = replace(how, keep=len(population) + how.population)
        found = explore(self._space, judge, how, self._rng, start=population, exclude=seen)
        if not apart:
            return found.decisions[:num]
        rows = kept(
            found.score,
            num,
            rng=self._rng,
            decisions=found.decisions,
            apart=apart,
            beside=self._led,
        )
        return found.decisions[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings(PolicySettings):
    """Settings of one tuning round; defaults of the release (docs/paper.md section 3)."""

    draft: ExplorerSettings | None = _DRAFT  # None: no round drafts, as in Ansor
    # first population of the draft: random programs, or "lm": those of the language model
    first: str = "random"
    # 0 generations: score the drafted and the random programs alone, as the paper describes it
    verify: ExplorerSettings = _VERIFY
    random_sample: int = 1536
    redraft_period: int = 2  # rounds between drafts
    measured_share: float = 0.1  # best measured programs in the verified population
    epsilon: float = 0.1  # share of a batch that is random
    prior: float = 0.0  # weight of the draft's score, in measurements, against the learned score
    # without a model: measure the best drafted programs; else random ones of them
    draft_leads: bool = False
    # likeness penalty (log seconds) among the first programs that the draft leads to: see `kept`.
    # None: of the device's kind, see `for_device`
    first_apart: float | None = 0.0

    takes_model: ClassVar[bool] = True
    policy: ClassVar = DraftThenVerify

    def __post_init__(self) -> None:
        if self.redraft_period < 1:
            raise PrunerError("policy.redraft_period must be at least 1")
        if self.draft is None and self.random_sample < 1:
            raise PrunerError("policy.random_sample must be at least 1 with policy.draft=null")
        if not self.verify.generations and self.verify.mutation_probability != MUTATED:
            raise PrunerError(
                "policy.verify.mutation_probability has no effect with policy.verify.generations=0"
            )
        if self.first_apart is not None and self.first_apart < 0:
            raise PrunerError(f"policy.first_apart={self.first_apart:g}: it must be 0 or more")
        if self.first_apart and not self.trusts_draft:
            raise PrunerError(
                f"policy.first_apart={self.first_apart:g} has no effect here: the draft does not "
                "choose this policy's first programs; leave it out, or set policy.draft_leads=true"
            )
        if self.first not in ("random", "lm"):
            raise PrunerError(f"policy.first={self.first}: it must be random or lm")
        if self.first == "lm" and self.draft is None:
            raise PrunerError(
                "policy.first=lm is the first population of the draft, and this policy has no "
                "draft; leave it out, or choose a policy with a draft, such as pruner_live"
            )

    @property
    def trusts_draft(self) -> bool:
        """See :class:`PolicySettings`."""
        return self.draft is not None and self.draft_leads

    def for_device(self, *, gpu: bool) -> Self:
        """See :class:`PolicySettings`; GPU spaces have many near-copies."""
        if self.first_apart is not None:
            return self
        return replace(self, first_apart=_FIRST_APART_GPU if gpu and self.trusts_draft else 0.0)

    def limited(self, population: int, *, can_draft: bool) -> Self:
        """See :class:`PolicySettings`."""

        def fewer(explorer: ExplorerSettings) -> ExplorerSettings:
            return replace(explorer, population=min(population, explorer.population))

        draft = None if self.draft is None else fewer(self.draft)
        # All drafted scores are equal then: further generations would only wander at random.
        if draft is not None and not can_draft:
            draft = replace(draft, generations=0)
        return replace(
            self,
            draft=draft,
            verify=fewer(self.verify),
            random_sample=min(population, self.random_sample),
        )


def accepted(score: ScoreFunction | None, decisions: Decisions) -> Decisions:
    """The vectors with a finite score; every vector without a score."""
    return decisions if score is None else decisions[np.isfinite(score(decisions))]


def weighed(
    model: ScoreFunction,
    draft: ScoreFunction,
    seen: Decisions,
    *,
    prior: float,
    latency_s: Floats,
) -> ScoreFunction:
    """Mix standard scores; the draft's weight is ``prior / (prior + measured)``.

    Ours, not the paper's: a model of a few dozen programs orders worse than the analyzer.
    Standardised over the programs `seen`; `measured`: finite entries of `latency_s` [N].
    """
    measured = np.isfinite(latency_s).sum()
    learned, drafted = standard(model, seen), standard(draft, seen)
    if not measured:  # 0 * -inf is nan, so the learned score must not enter with weight 0
        return drafted
    weight = prior / (prior + measured)
    return lambda wanted: (1 - weight) * learned(wanted) + weight * drafted(wanted)


def standard(score: ScoreFunction, seen: Decisions) -> ScoreFunction:
    """A score in standard deviations over the legal programs of `seen`."""
    values = score(seen)
    values = values[np.isfinite(values)]
    center, spread = (values.mean(), values.std() or 1.0) if len(values) else (0.0, 1.0)
    return lambda wanted: (score(wanted) - center) / spread


def guard(score: ScoreFunction, draft: ScoreFunction | None) -> ScoreFunction:
    """The learned score, minus infinity where the draft's score is."""
    if draft is None:
        return score

    def guarded(decisions: Decisions) -> Scores:
        # Illegal programs are never measured, so their learned scores mean nothing.
        return np.where(np.isfinite(draft(decisions)), score(decisions), -np.inf)

    return guarded
