"""The learned model of a run, which all tasks share and train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from pruner import features
from pruner.arrays import Decisions
from pruner.data.tasks import TaskKey
from pruner.features.batch import FeatureSpec, ProgramFeatures
from pruner.features.dataflow import DataflowKind, kind_of
from pruner.models.adaptation.base import Adaptation, save_models
from pruner.models.analyzer.columns import draft_columns
from pruner.models.checkpoint.checkpoint import (
    ADAPTED,
    MODELS_FOLDER,
    CheckpointInfo,
    git_commit,
    save_checkpoint,
)
from pruner.models.checkpoint.tensors import SUFFIX
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.ranker import Ranker
from pruner.models.registry import ModelSpec
from pruner.models.training.recipe import Start
from pruner.models.trees.xgboost import XGBoostRanker
from pruner.search.explorer import ScoreFunction
from pruner.search.policy import State
from pruner.search.space import History
from pruner.tune.phases import Phases
from pruner.tune.spaces.union import UnionSpace


class OnlineModel:
    """A ranker of live programs; its subclasses train it on all measured programs.

    ``ranker``: None before any training. ``dataflow``: the kind of its dataflow rows.
    ``reads_draft``: it reads the analyzer's columns of a program, too.
    """

    reads_draft = False

    def __init__(self, ranker: Ranker | None, dataflow: DataflowKind) -> None:
        self.ranker, self.dataflow = ranker, dataflow
        if ranker is not None:
            self.reads_draft = ranker.reads_draft

    def set_reference_population(self, key: TaskKey, population: ProgramFeatures) -> None:
        """Normalise by the first population of a task."""

    def learn(self, store: ProgramTable) -> None:
        """Train on all labelled programs (absolute features)."""

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """Write the model that learned from `keys` as checkpoints, name to file."""
        return {}

    def state(self) -> State:
        """Return the complete state for exact resumption."""
        return {}

    def load_state(self, state: State) -> None:
        """Restore a result of `state`."""


class AdaptedModel(OnlineModel):
    """A network updated by a method of :mod:`pruner.models.adaptation`."""

    def __init__(self, adaptation: Adaptation, start: Start | None = None) -> None:
        """Start from an adaptation; `start` describes its source, if any."""
        self._adaptation, self._start = adaptation, start
        rows = adaptation.ranker.network.num_dataflow_rows
        dataflow: Any = kind_of(rows) if start is None else start.info.dataflow
        # a source model scores before the first measurement, an untrained network does not
        known = adaptation.ranker if adaptation.setting.source is not None else None
        super().__init__(known, dataflow)
        self.reads_draft = adaptation.ranker.reads_draft

    def set_reference_population(self, key: TaskKey, population: ProgramFeatures) -> None:
        """See :class:`OnlineModel`: the population's mean becomes the task's centre."""
        self._adaptation.set_reference_population(key, population)

    def learn(self, store: ProgramTable) -> None:
        """See :class:`OnlineModel`."""
        self._adaptation.update(store)
        self.ranker = self._adaptation.ranker

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
        arrays = tree_map(
            lambda value: value.detach().cpu().numpy() if torch.is_tensor(value) else value,
            self._adaptation.state_dict(),
        )
        return {"knows": self.ranker is not None, "adaptation": arrays}

    def load_state(self, state: State) -> None:
        """See :class:`OnlineModel`."""
        tensors = tree_map(
            lambda value: torch.from_numpy(value) if isinstance(value, np.ndarray) else value,
            state["adaptation"],
        )
        self._adaptation.load_state_dict(tensors)
        self.ranker = self._adaptation.ranker if state["knows"] else None


class TreeModel(OnlineModel):
    """Boosted trees, grown anew from all measurements."""

    def __init__(self, *, seed: int, num_rounds: int = 60, max_depth: int = 6) -> None:
        super().__init__(None, "paper")  # trees read no dataflow rows
        self._seed = seed
        # absolute features: programs are scored together with others than in training
        self._options: dict[str, Any] = {
            "num_rounds": num_rounds,
            "max_depth": max_depth,
            "relative": False,
            "pooling": ("sum", "max"),
        }

    def learn(self, store: ProgramTable) -> None:
        """See :class:`OnlineModel`."""
        ranker = XGBoostRanker(**self._options)
        index = torch.isfinite(store.label).nonzero().squeeze(1)
        # no validation rows: the programs are few, and the number of trees is fixed
        ranker.fit(store, index, index[:0], seed=self._seed, num_threads=1)
        self.ranker = ranker

    def keep(self, folder: Path, keys: Sequence[TaskKey]) -> Mapping[str, Path]:
        """See :class:`OnlineModel`."""
        if self.ranker is None:
            return {}
        info = CheckpointInfo(
            model=ModelSpec(name=type(self.ranker).__name__, arguments=self._options),
            feature_version=features.FEATURE_SET_VERSION,
            dataflow=self.dataflow,
            git_commit=git_commit(),
        )
        path = folder / MODELS_FOLDER / f"{ADAPTED}{SUFFIX}"
        save_checkpoint(path, self.ranker, info.with_seen(keys))
        return {ADAPTED: path}

    def state(self) -> State:
        """See :class:`OnlineModel`."""
        assert self.ranker is None or isinstance(self.ranker, XGBoostRanker)
        return {"booster": None if self.ranker is None else self.ranker.state().numpy()}

    def load_state(self, state: State) -> None:
        """See :class:`OnlineModel`."""
        self.ranker = None
        if state["booster"] is not None:
            ranker = XGBoostRanker(**self._options)
            ranker.load_state(torch.from_numpy(state["booster"]))
            self.ranker = ranker


class SharedModel:
    """The online model of a run, with the measured programs of all.

    It is fitted again only when the programs have grown by a constant factor, so a run of n
    programs does O(log n) fits: a fit takes seconds that grow with the programs.
    """

    def __init__(self, model: OnlineModel, *, refit: float = 0.0) -> None:
        """Share a model; ``refit``: the growth of programs between fits, a share."""
        self.model, self._refit = model, refit
        self._fitted = self._waiting = 0  # programs of the last fit, and programs since
        self._learned: dict[TaskKey, LiveLearner] = {}  # tasks with programs in earlier fits
        self._pending: list[LiveLearner] = []  # tasks with programs that no fit has seen

    def add_pending(self, learner: LiveLearner, number: int) -> None:
        """Register a learner with `number` new programs for the next fit."""
        self._waiting += number
        if not any(learner is other for other in self._pending):
            self._pending.append(learner)

    def fit(self, *, whatever: bool = False) -> None:
        """Fit on all tasks if enough programs are new, or any with ``whatever``."""
        if not self._pending or (self._waiting < self._refit * self._fitted and not whatever):
            return
        self._fitted, self._waiting = self._fitted + self._waiting, 0
        self._learned |= {learner.key: learner for learner in self._pending}
        self._pending.clear()
        programs = [learner.programs() for learner in self._learned.values()]
        parts = [p for p in programs if np.isfinite(p.latency_s).sum() > 0]
        # a ranking needs two programs
        if sum(len(p.latency_s) for p in parts) > 1:
            self.model.learn(ProgramTable.build(parts))

    def keep(self, folder: Path, *, learn: bool) -> Mapping[str, Path]:
        """Write checkpoints; with `learn`, fit the latest programs before."""
        if learn:
            self.fit(whatever=True)
        return self.model.keep(folder, list(self._learned))

    def state(self) -> State:
        """Return the state that the learners' histories do not contain."""
        return {
            # in the order of the first fits: it is the order of the training rows
            "parts": [key.task for key in self._learned],
            "news": [learner.key.task for learner in self._pending],
            "fitted": self._fitted,
            "waiting": self._waiting,
            "model": self.model.state(),
        }

    def load_state(self, state: State) -> None:
        """Restore a result of `state`, after the learners restored theirs."""
        known = {learner.key.task: learner for learner in self._pending}
        self._learned = {known[task].key: known[task] for task in state["parts"]}
        self._pending = [known[task] for task in state["news"]]
        self._fitted, self._waiting = int(state["fitted"]), int(state["waiting"])
        self.model.load_state(state["model"])


def live_features(
    space: UnionSpace, decisions: Decisions, model: OnlineModel, key: TaskKey
) -> ProgramFeatures:
    """Compute the features of a task's programs for a model."""
    extra = draft_columns(key.platform) if model.reads_draft else None
    return space.features(decisions, FeatureSpec(dataflow=model.dataflow, extra=extra))


class LiveLearner:
    """The learner of a task's policy (:data:`pruner.search.policy.Learner`).

    Its first programs are scored by a model of the other tasks.
    """

    def __init__(
        self,
        key: TaskKey,
        space: UnionSpace,
        shared: SharedModel,
        phases: Phases,
        rng: np.random.Generator,
        *,
        num_reference: int = 64,
    ) -> None:
        """Connect a task; the mean of `num_reference` drawn programs is its centre."""
        self.key, self._space, self._shared, self._phases = key, space, shared, phases
        self._rng, self._num_reference, self._has_reference = rng, num_reference, False
        self._history = History(space)
        self._noted = 0  # programs of the history that the shared model counts
        self._features: ProgramFeatures | None = None  # of the first programs of the history

    def state(self) -> State:
        """Return the state that the history does not contain."""
        return {"rng": self._rng.bit_generator.state, "met": self._has_reference}

    def load_state(self, state: State) -> None:
        """Restore a result of `state`."""
        self._rng.bit_generator.state, self._has_reference = state["rng"], state["met"]

    def note(self, history: History) -> None:
        """Register new programs of the task's history for the next fit."""
        self._history = history
        if len(history) > self._noted:
            self._shared.add_pending(self, len(history) - self._noted)
            self._noted = len(history)

    def programs(self) -> TaskPrograms:
        """Return all tried programs, with features computed only for new programs."""
        history, parts = self._history, [] if self._features is None else [self._features]
        # histories only grow, so earlier features stay valid row by row
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
        """Fit on all measurements of all tasks, and return the score."""
        with self._phases.time("train"):
            if not self._has_reference:
                population = self._space.sample(self._num_reference, self._rng)
                self._shared.model.set_reference_population(self.key, self._featurised(population))
                self._has_reference = True
            self.note(history)
            self._shared.fit()
        return self.score

    @property
    def score(self) -> ScoreFunction | None:
        """The score by the present model; None before any training."""
        if self._shared.model.ranker is None:
            return None
        return learned_score(self.key, self._space, self._shared.model, self._phases)


def learned_score(
    key: TaskKey, space: UnionSpace, model: OnlineModel, phases: Phases
) -> ScoreFunction:
    """Score decision vectors by the model at call time.

    Programs of design spaces without features get random scores, drawn from the scores that the
    model has returned so far.
    """
    given: list[NDArray[np.float64]] = []

    def score(decisions: Decisions) -> NDArray[np.float64]:
        """Score programs, higher is better; minus infinity where the engine refuses."""
        ranker, ranked = model.ranker, space.ranked(decisions)
        assert ranker is not None, key
        out = np.zeros(len(decisions))
        with phases.time("verify"):
            if ranked.any():
                found = live_features(space, decisions[ranked], model, key)
                out[ranked] = ranker.score(found, key)
            if not ranked.all():
                # scores of earlier calls, too: a call may have few ranked rows, or none
                given.append(out[ranked & np.isfinite(out)])
                known = np.concatenate(given)
                if len(known):
                    out[~ranked] = np.quantile(known, space.chance(decisions[~ranked]))
        return out

    return score
