"""The learned model of a run, shared by all tasks, which follows the measurements.

Trees grown anew, or a network with a way to adapt it; :func:`verifier` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pruner import features
from pruner.arrays import Decisions
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.features.dataflow import NUM_ROWS
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.model import Model
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.registry import Trainable, models_with
from pruner.models.training.training import build_network
from pruner.models.trees.xgboost import XGBoostRanker
from pruner.progress import Tell
from pruner.search.explorer import ScoreFunction
from pruner.tune.phases import Phases
from pruner.tune.spaces.union import UnionSpace

_DATAFLOW = "paper"  # what live spaces compute


class OnlineModel(Protocol):
    """A ranker that learns from all programs measured so far."""

    @property
    def ranker(self) -> Ranker | None:
        """What scores now; None while it knows nothing."""

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See the first population of a task."""

    def learn(self, store: ProgramStore) -> None:
        """Take in all labelled programs (absolute features)."""


class AdaptedModel:
    """A network kept up to date by one of :mod:`pruner.models.adaptation`'s methods."""

    def __init__(self, adaptation: Adaptation) -> None:
        self._adaptation = adaptation
        self._knows = adaptation.setting.source is not None

    @property
    def ranker(self) -> Ranker | None:
        """See :class:`OnlineModel`."""
        return self._adaptation.ranker if self._knows else None

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`: its mean becomes the task's centre."""
        self._adaptation.meet(key, population)

    def learn(self, store: ProgramStore) -> None:
        """See :class:`OnlineModel`."""
        self._adaptation.update(store)
        self._knows = True


class TreeModel:
    """Boosted trees, grown anew from all measurements."""

    def __init__(self, *, seed: int, num_rounds: int = 60, max_depth: int = 6) -> None:
        self._seed = seed
        self._options = {"num_rounds": num_rounds, "max_depth": max_depth}
        self._ranker: XGBoostRanker | None = None

    @property
    def ranker(self) -> Ranker | None:
        """See :class:`OnlineModel`."""
        return self._ranker

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`; absolute features need no centre."""

    def learn(self, store: ProgramStore) -> None:
        """See :class:`OnlineModel`."""
        # absolute features: the programs scored together are not the ones learned from
        ranker = XGBoostRanker(relative=False, pooling=("sum", "max"), **self._options)  # type: ignore[arg-type]
        index = torch.isfinite(store.label).nonzero().squeeze(1)
        ranker.fit(store, index, index[:0], seed=self._seed, num_threads=1)
        self._ranker = ranker


class SharedModel:
    """The online model of a run with the measured programs of every task."""

    def __init__(self, model: OnlineModel) -> None:
        self.model = model
        self._parts: dict[TaskKey, TaskPrograms] = {}
        self._news: list[LiveLearner] = []  # with programs that no fit has seen

    def has_news(self, learner: LiveLearner) -> None:
        """Ask `learner` for its programs at the next fit."""
        if not any(learner is other for other in self._news):
            self._news.append(learner)

    def fit(self) -> None:
        """Fit on the measurements of all tasks, where any are new."""
        if not self._news:
            return
        for learner in self._news:
            part = learner.programs()
            self._parts[part.key] = part
        self._news.clear()
        parts = [p for p in self._parts.values() if np.isfinite(p.latency_s).sum() > 0]
        if sum(len(p.latency_s) for p in parts) > 1:
            self.model.learn(ProgramStore.build(parts))


class LiveLearner:
    """The learner of one task's policy (:data:`pruner.search.policy.Learner`).

    What is observed of a task reaches the shared model before any task asks for scores: the first
    programs of a task are judged by what the others taught.
    """

    def __init__(
        self,
        key: TaskKey,
        space: UnionSpace,
        shared: SharedModel,
        phases: Phases,
        rng: np.random.Generator,
        *,
        meet: int = 64,
    ) -> None:
        """`rng` draws the `meet` programs whose mean becomes the task's centre."""
        self._key, self._space, self._shared, self._phases = key, space, shared, phases
        self._rng, self._meet, self._met = rng, meet, False
        self._features: ProgramFeatures | None = None
        self._decisions: list[Decisions] = []  # not yet featurised
        self._latency_s = np.zeros(0)

    def observe(self, decisions: Decisions, latency_s: NDArray[np.float64]) -> None:
        """Keep measured programs for the next fit."""
        if len(latency_s):
            self._decisions.append(decisions)
            self._latency_s = np.concatenate([self._latency_s, latency_s])
            self._shared.has_news(self)

    def programs(self) -> TaskPrograms:
        """All measured programs; only those that are new are featurised."""
        fresh = self._space.features(np.concatenate(self._decisions))
        self._decisions.clear()
        parts = [] if self._features is None else [self._features]
        self._features = ProgramFeatures.concatenate([*parts, fresh])
        line = np.arange(len(self._latency_s))
        return TaskPrograms.of(self._key, self._features, self._latency_s, line)

    def __call__(
        self, decisions: Decisions, latency_s: NDArray[np.float64]
    ) -> ScoreFunction | None:
        """Fit on all measurements of all tasks; what was not observed before is now."""
        with self._phases.time("train"):
            if not self._met:
                population = self._space.sample(self._meet, self._rng)
                self._shared.model.meet(self._key, self._space.features(population))
                self._met = True
            known = len(self._latency_s)
            self.observe(decisions[known:], latency_s[known:])
            self._shared.fit()
        return self.score

    @property
    def score(self) -> ScoreFunction | None:
        """The present model's scores; None while it knows nothing."""
        if self._shared.model.ranker is None:
            return None
        return LearnedScore(self._key, self._space, self._shared.model, self._phases)


class LearnedScore:
    """Scores of decision vectors by the model as it is when they are asked for.

    Programs of design spaces without features are ranked by chance: they are spread over the scores
    that the model has given so far.
    """

    def __init__(self, key: TaskKey, space: UnionSpace, model: OnlineModel, phases: Phases) -> None:
        self._key, self._space, self._model, self._phases = key, space, model, phases
        self._given = np.zeros(0)

    def __call__(self, decisions: Decisions) -> NDArray[np.float64]:
        """Higher is better; minus infinity where the engine refuses a program."""
        ranker, ranked = self._model.ranker, self._space.ranked(decisions)
        assert ranker is not None, self._key
        out = np.zeros(len(decisions))
        with self._phases.time("verify"):
            if ranked.any():
                out[ranked] = ranker.score(self._space.features(decisions[ranked]), self._key)
            if not ranked.all():
                given = out[ranked & np.isfinite(out)]
                self._given = np.concatenate([self._given, given])
                if len(self._given):
                    chance = self._space.chance(decisions[~ranked])
                    out[~ranked] = np.quantile(self._given, chance)
        return out


def verifier(
    make_model: Callable[[], Any],
    make_adaptation: Callable[..., Adaptation],
    *,
    checkpoint: Path | None,
    platform: str,
    seed: int,
    tell: Tell,
    own: Sequence[type[Trainable]] = (),
) -> Callable[[], OnlineModel]:
    """What makes the learned model of a run; everything that can be wrong with it is told now.

    `make_adaptation` takes ``setting=``, a :class:`~pruner.models.adaptation.base.Setting`.
    `own` are classes of the user that the checkpoint may name.

    Raises:
        PrunerError: a model that cannot read the features of live spaces, or a checkpoint that
            would not count.
    """
    model: Any = build_network(make_model, seed=0)
    if not model.is_network:
        if not model.grows_online:
            raise PrunerError(f"{type(model).__name__}: tune.py takes a network or model=xgboost")
        if checkpoint is not None:
            raise PrunerError(f"checkpoint={checkpoint}: model=xgboost is grown anew; leave it")
        return lambda: TreeModel(seed=seed)
    _check_network(model, "model")
    source = None if checkpoint is None else _source(checkpoint, platform, tell, own)

    def adaptation() -> Adaptation:
        setting = Setting(make_network=make_model, source=source, seed=seed)
        return make_adaptation(setting=setting)

    if source is not None and isinstance(adaptation(), Scratch):
        raise PrunerError(
            f"checkpoint={checkpoint}: adaptation=scratch throws its weights away; "
            "choose for example adaptation=finetune"
        )
    adaptation()  # refuses what it cannot work with
    return lambda: AdaptedModel(adaptation())


def _source(path: Path, platform: str, tell: Tell, own: Sequence[type[Trainable]]) -> NeuralRanker:
    version, models = features.FEATURE_SET_VERSION, models_with(own)
    ranker, info = load_checkpoint(path, feature_version=version, models=models)
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError(f"checkpoint={path}: trees cannot be adapted online")
    if info.dataflow != _DATAFLOW:
        raise PrunerError(
            f"checkpoint={path}: trained with features.dataflow={info.dataflow}; tune.py takes "
            f"models trained with features.dataflow={_DATAFLOW}"
        )
    _check_network(ranker.network, f"checkpoint={path}")
    if info.seen_tasks and platform not in info.seen_tasks:
        known = ", ".join(sorted(info.seen_tasks))
        tell(f"checkpoint={path}: trained on {known}, never on {platform}, which is tuned now")
    return ranker


def _check_network(network: Model, name: str) -> None:
    """Refuse what cannot read the features of live spaces."""
    if network.reads_primitives:
        raise PrunerError(
            f"{name}: {type(network).__name__} reads primitives of Ansor's records; "
            "choose model=pacm"
        )
    rows = NUM_ROWS[_DATAFLOW]
    if network.num_dataflow_rows not in (None, rows):
        raise PrunerError(f"{name}: made for other dataflow rows than {rows}; choose model=pacm")
