"""The learned model of a run, shared by all tasks, which follows the measurements.

Trees grown anew, a network with a way to adapt it, or a model that stays as it is;
:mod:`pruner.tune.run.verifier` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pruner import features
from pruner.arrays import Decisions
from pruner.data.tasks import TaskKey
from pruner.features.batch import ProgramFeatures
from pruner.features.dataflow import DataflowKind, kind_of
from pruner.models.adaptation.base import Adaptation
from pruner.models.adaptation.keeping import save_models
from pruner.models.analyzer.columns import draft_columns
from pruner.models.checkpoint.checkpoint import (
    ADAPTED,
    MODELS_FOLDER,
    CheckpointInfo,
    git_commit,
    save_checkpoint,
)
from pruner.models.checkpoint.tensors import SUFFIX
from pruner.models.programs.table import ProgramTable, TaskPrograms
from pruner.models.ranker import Ranker
from pruner.models.registry import ModelSpec
from pruner.models.training.start import Start
from pruner.models.trees.xgboost import XGBoostRanker
from pruner.search.explorer import ScoreFunction
from pruner.search.history import History
from pruner.search.policy import State
from pruner.tune.phases import Phases
from pruner.tune.spaces.union import UnionSpace


class OnlineModel(Protocol):
    """A ranker that learns from all programs measured so far."""

    @property
    def ranker(self) -> Ranker | None:
        """What scores now; None while it knows nothing."""

    @property
    def dataflow(self) -> DataflowKind:
        """The rows of the dataflow pattern that it reads."""

    @property
    def reads_draft(self) -> bool:
        """Whether it reads what the analyzer makes of a program."""

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See the first population of a task."""

    def learn(self, store: ProgramTable) -> None:
        """Take in all labelled programs (absolute features)."""

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """Write what it has learned as checkpoints, name to file; `keys`: the tasks it learned."""

    def state(self) -> State:
        """All that it has learned, to go on exactly."""

    def load_state(self, state: State) -> None:
        """Take back what `state` returned."""


class AdaptedModel:
    """A network kept up to date by one of :mod:`pruner.models.adaptation`'s methods."""

    def __init__(self, adaptation: Adaptation, start: Start | None = None) -> None:
        """`start` describes the source of the adaptation, where it has one."""
        self._adaptation, self._start = adaptation, start
        self._knows = adaptation.setting.source is not None

    @property
    def dataflow(self) -> DataflowKind:
        """See :class:`OnlineModel`."""
        if self._start is not None:
            return self._start.info.dataflow  # type: ignore[return-value]
        return kind_of(self._adaptation.ranker.network.num_dataflow_rows)

    @property
    def reads_draft(self) -> bool:
        """See :class:`OnlineModel`."""
        return self._adaptation.ranker.reads_draft

    @property
    def ranker(self) -> Ranker | None:
        """See :class:`OnlineModel`."""
        return self._adaptation.ranker if self._knows else None

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`: its mean becomes the task's centre."""
        self._adaptation.meet(key, population)

    def learn(self, store: ProgramTable) -> None:
        """See :class:`OnlineModel`."""
        self._adaptation.update(store)
        self._knows = True

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """See :class:`OnlineModel`."""
        return save_models(
            self._adaptation,
            lambda name: folder / MODELS_FOLDER / f"{name}{SUFFIX}",
            start=self._start,
            dataflow=self.dataflow,
            keys=keys,
            about={"method": type(self._adaptation).__name__},
        )

    def state(self) -> State:
        """See :class:`OnlineModel`."""
        return {"knows": self._knows, "adaptation": _arrays(self._adaptation.state_dict())}

    def load_state(self, state: State) -> None:
        """See :class:`OnlineModel`."""
        self._adaptation.load_state_dict(_tensors(state["adaptation"]))
        self._knows = state["knows"]


class TreeModel:
    """Boosted trees, grown anew from all measurements."""

    dataflow: DataflowKind = "paper"  # reads none
    reads_draft = False

    def __init__(self, *, seed: int, num_rounds: int = 60, max_depth: int = 6) -> None:
        self._seed = seed
        # absolute features: the programs scored together are not the ones learned from
        self._options: dict[str, Any] = {
            "num_rounds": num_rounds,
            "max_depth": max_depth,
            "relative": False,
            "pooling": ("sum", "max"),
        }
        self._ranker: XGBoostRanker | None = None

    @property
    def ranker(self) -> Ranker | None:
        """See :class:`OnlineModel`."""
        return self._ranker

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`; absolute features need no centre."""

    def learn(self, store: ProgramTable) -> None:
        """See :class:`OnlineModel`."""
        ranker = XGBoostRanker(**self._options)
        index = torch.isfinite(store.label).nonzero().squeeze(1)
        ranker.fit(store, index, index[:0], seed=self._seed, num_threads=1)
        self._ranker = ranker

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """See :class:`OnlineModel`."""
        if self._ranker is None:
            return {}
        info = CheckpointInfo(
            model=ModelSpec(name=type(self._ranker).__name__, arguments=self._options),
            feature_version=features.FEATURE_SET_VERSION,
            dataflow=self.dataflow,
            git_commit=git_commit(),
        )
        path = folder / MODELS_FOLDER / f"{ADAPTED}{SUFFIX}"
        save_checkpoint(path, self._ranker, info.with_seen(keys))
        return {ADAPTED: path}

    def state(self) -> State:
        """See :class:`OnlineModel`."""
        return {"booster": None if self._ranker is None else self._ranker.state().numpy()}

    def load_state(self, state: State) -> None:
        """See :class:`OnlineModel`."""
        self._ranker = None
        if state["booster"] is not None:
            self._ranker = XGBoostRanker(**self._options)
            self._ranker.load_state(torch.from_numpy(state["booster"]))


class FrozenModel:
    """A trained ranker that stays as it is, such as trees."""

    def __init__(self, ranker: Ranker, dataflow: DataflowKind) -> None:
        self.ranker: Ranker | None = ranker
        self.dataflow = dataflow
        self.reads_draft = ranker.reads_draft

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`."""

    def learn(self, store: ProgramTable) -> None:
        """See :class:`OnlineModel`."""

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """See :class:`OnlineModel`; it has learned nothing."""
        return {}

    def state(self) -> State:
        """See :class:`OnlineModel`."""
        return {}

    def load_state(self, state: State) -> None:
        """See :class:`OnlineModel`."""


class SharedModel:
    """The online model of a run with the measured programs of every task.

    It is fitted again only when the programs have grown by a constant factor, so a run of n
    programs does O(log n) fits: a fit takes seconds that grow with the programs.
    """

    def __init__(self, model: OnlineModel, *, refit: float = 0.0) -> None:
        """``refit``: the share of the programs of the last fit by which they must have become more;
        0: any news is learned."""
        self.model, self._refit = model, refit
        self._fitted = self._waiting = 0  # programs that the last fit knew, and that came since
        self._learned: dict[TaskKey, LiveLearner] = {}  # whose programs fits have seen
        self._news: list[LiveLearner] = []  # with programs that no fit has seen

    def has_news(self, learner: LiveLearner, number: int) -> None:
        """Ask `learner`, of which so many programs are new, for its programs at the next fit."""
        self._waiting += number
        if not any(learner is other for other in self._news):
            self._news.append(learner)

    def fit(self, *, whatever: bool = False) -> None:
        """Fit on the measurements of all tasks, where enough are new; or any, with ``whatever``."""
        if not self._news or (self._waiting < self._refit * self._fitted and not whatever):
            return
        self._fitted, self._waiting = self._fitted + self._waiting, 0
        self._learned |= {learner.key: learner for learner in self._news}
        self._news.clear()
        programs = [learner.programs() for learner in self._learned.values()]
        parts = [p for p in programs if np.isfinite(p.latency_s).sum() > 0]
        if sum(len(p.latency_s) for p in parts) > 1:
            self.model.learn(ProgramTable.build(parts))

    def keep(self, folder: Path, *, learn: bool) -> Mapping[str, Path]:
        """Write what is known as checkpoints; with `learn` what came last is learned before."""
        if learn:
            self.fit(whatever=True)
        return self.model.keep(folder, list(self._learned))

    def state(self) -> State:
        """What a resumed run needs besides the histories of its learners."""
        return {
            "parts": [key.task for key in self._learned],
            "news": [learner.key.task for learner in self._news],
            "fitted": self._fitted,
            "waiting": self._waiting,
            "model": self.model.state(),
        }

    def load_state(self, state: State) -> None:
        """Take back what `state` returned; the learners have taken back theirs."""
        known = {learner.key.task: learner for learner in self._news}
        self._learned = {known[task].key: known[task] for task in state["parts"]}
        self._news = [known[task] for task in state["news"]]
        self._fitted, self._waiting = int(state["fitted"]), int(state["waiting"])
        self.model.load_state(state["model"])


def live_features(
    space: UnionSpace, decisions: Decisions, model: OnlineModel, key: TaskKey
) -> ProgramFeatures:
    """Features of programs of a task as the model reads them."""
    extra = draft_columns(key.platform) if model.reads_draft else None
    return space.features(decisions, model.dataflow, extra)


class LiveLearner:
    """The learner of one task's policy (:data:`pruner.search.policy.Learner`).

    What is measured of a task reaches the shared model before any task asks for scores: the first
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
        self.key, self._space, self._shared, self._phases = key, space, shared, phases
        self._rng, self._meet, self._met = rng, meet, False
        self._history = History(space)
        self._noted = 0  # programs of the history that the shared model counts
        self._features: ProgramFeatures | None = None  # of the first programs of the history

    def state(self) -> State:
        """What it needs besides the history to go on exactly."""
        return {"rng": self._rng.bit_generator.state, "met": self._met}

    def load_state(self, state: State) -> None:
        """Take back what `state` returned."""
        self._rng.bit_generator.state, self._met = state["rng"], state["met"]

    def note(self, history: History) -> None:
        """Have the next fit take in what is new of the task's history.

        A program that was not tried teaches nothing; a failure counts as the slowest of all.
        """
        self._history = history
        if len(history) > self._noted:
            self._shared.has_news(self, len(history) - self._noted)
            self._noted = len(history)

    def programs(self) -> TaskPrograms:
        """All programs that were tried; only those that are new are featurised."""
        history, parts = self._history, [] if self._features is None else [self._features]
        known = sum(len(part) for part in parts)
        if len(history) > known:
            fresh = self._featurised(history.decisions[known:])
            self._features = ProgramFeatures.concatenate([*parts, fresh])
        assert self._features is not None, self.key
        line = np.flatnonzero(history.tried)
        return TaskPrograms.of(self.key, self._features.take(line), history.latency_s[line], line)

    def _featurised(self, decisions: Decisions) -> ProgramFeatures:
        return live_features(self._space, decisions, self._shared.model, self.key)

    def __call__(self, history: History) -> ScoreFunction | None:
        """Fit on all measurements of all tasks."""
        with self._phases.time("train"):
            if not self._met:
                population = self._space.sample(self._meet, self._rng)
                self._shared.model.meet(self.key, self._featurised(population))
                self._met = True
            self.note(history)
            self._shared.fit()
        return self.score

    @property
    def score(self) -> ScoreFunction | None:
        """The present model's scores; None while it knows nothing."""
        if self._shared.model.ranker is None:
            return None
        return LearnedScore(self.key, self._space, self._shared.model, self._phases)


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
                found = live_features(self._space, decisions[ranked], self._model, self._key)
                out[ranked] = ranker.score(found, self._key)
            if not ranked.all():
                given = out[ranked & np.isfinite(out)]
                self._given = np.concatenate([self._given, given])
                if len(self._given):
                    chance = self._space.chance(decisions[~ranked])
                    out[~ranked] = np.quantile(self._given, chance)
        return out


def _arrays(value: Any) -> Any:
    """Mappings and sequences with arrays in the place of tensors."""
    match value:
        case torch.Tensor():
            return value.detach().cpu().numpy()
        case dict():
            return {name: _arrays(item) for name, item in value.items()}
        case list() | tuple():
            return [_arrays(item) for item in value]
        case _:
            return value


def _tensors(value: Any) -> Any:
    """The other way round."""
    match value:
        case np.ndarray():
            return torch.from_numpy(value)
        case dict():
            return {name: _tensors(item) for name, item in value.items()}
        case list():
            return [_tensors(item) for item in value]
        case _:
            return value
