"""The base of adaptation methods: rounds of target programs in, ranker out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from pruner import features
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.features.dataflow import DataflowKind
from pruner.models.adaptation.fitting import Example, OnlineFit
from pruner.models.checkpoint.checkpoint import ADAPTED, CheckpointInfo, git_commit, save_checkpoint
from pruner.models.model import RankingNetwork
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import Center, ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.models.training.recipe import Start
from pruner.models.training.training import build_network

_STREAM = 1_000_003  # rounds of one run never reach it, so every (seed, round) has its own stream


class Setting:
    """The starting point of an adaptation.

    `make_network` builds an untrained network. `source` is the ranker that was trained on the
    source platform, with the normalisation of that training; without it a method that starts from
    weights starts from random weights. `source_store` has labelled programs of the source platform
    (absolute features) for the methods that train on them again. Without a source, `relative` and
    `standard` set the inputs of a fresh network: features relative to the task, standard scores
    (otherwise: divided by column maxima).
    """

    # Not a dataclass: Hydra turns dataclass arguments of what it instantiates into its own nodes.
    def __init__(
        self,
        *,
        make_network: Callable[[], RankingNetwork],
        source: NeuralRanker | None = None,
        source_store: ProgramTable | None = None,
        relative: bool = True,
        standard: bool = True,
        seed: int = 0,
    ) -> None:
        self.make_network = make_network
        self.source = source
        self.source_store = source_store
        self.relative = relative if source is None else source.relative
        self.standard = standard if source is None else source.scaler.is_standard
        self.seed = seed


class Adaptation(ABC):
    """A ranker that follows a target platform round by round.

    Once a round `update` gets all labelled target programs so far; `ranker` scores until the next
    update. A network with relative features needs the same centre of a task in fits and in scores:
    fitted relative to the measured programs, which are the model's own favourites, and scored
    relative to the candidates, it reads other inputs than it learned from. (K80 to V100,
    fine-tuning on 40 programs a task: Top-1 0.87 over tasks instead of 0.95 with either centre in
    both places.) So the centre of a task is set once: the mean of its first population where
    `set_reference_population` was called, else the mean of its first measured programs.

    `name`: of a method that needs a source model. `keeps_source`: the weights still hold what the
    source learned. `learns`: they also learn from the target. `further`: the attribute with weights
    by name that the state holds, too. `period`: updates between two fits.
    """

    name: ClassVar[str] = ""
    keeps_source: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    further: ClassVar[str] = ""
    period: int = 1

    def __init__(self, setting: Setting, *, fit: OnlineFit | None = None) -> None:
        self.setting = setting
        self.fit = fit or OnlineFit()
        self.round = 0
        source = self.source if self.name else setting.source
        if source is None:
            network = build_network(setting.make_network, setting.seed)
            ranker = NeuralRanker(network, ColumnScaler(), relative=setting.relative)
        else:
            # The source is shared by all methods of a comparison, so an update must not touch it.
            ranker = deepcopy(source)
        self._ranker = ranker.eval()

    @property
    def source(self) -> NeuralRanker:
        """The source ranker; raises PrunerError without a source."""
        if self.setting.source is None:
            raise PrunerError(
                f"{self.name} needs a model of the source platform; give checkpoint=RUN"
            )
        return self.setting.source

    @property
    def ranker(self) -> NeuralRanker:
        """The present ranker, in evaluation mode; replaced or changed by `update`."""
        return self._ranker

    def set_reference_population(self, key: TaskKey, population: ProgramFeatures) -> None:
        """Set a task's centre to the mean of its first population, once."""
        valid = population.valid
        if self.ranker.relative and key not in self.ranker.centers and valid.any():
            batch = ProgramBatch.of(population.take(valid), key.platform)
            self.ranker.centers[key] = Center.of(batch)

    def update(self, store: ProgramTable) -> None:
        """Learn from all labelled target programs so far (absolute features)."""
        if self.ranker.relative:
            for number in store.task.unique().tolist():
                if (key := store.keys[number]) not in self.ranker.centers:
                    own = store.programs(store.programs_of([number]))
                    self.ranker.centers[key] = Center.of(own)
        self._update(store)
        self.round += 1

    @property
    def models(self) -> dict[str, NeuralRanker]:
        """The resulting rankers by name, of the class of the source."""
        return {ADAPTED: self.ranker}

    def state_dict(self) -> dict[str, Any]:
        """State for an exact continuation; `torch.save` can write it."""
        centers = self.ranker.centers.items()
        return {
            "round": self.round,
            "network": copied(self.ranker.network.state_dict()),
            "scaler": copied(self.ranker.scaler.state_dict()),
            "centers": [(asdict(key), asdict(center)) for key, center in centers],
            **({self.further: copied(getattr(self, self.further))} if self.further else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of an adaptation with the same setting."""
        self.round = state["round"]
        self.ranker.network.load_state_dict(state["network"])
        self.ranker.scaler.load_state_dict(state["scaler"])
        self.ranker.centers.clear()
        for key, center in state["centers"]:
            known = TaskKey(**{**key, "fused": tuple(key["fused"])})
            self.ranker.centers[known] = Center(**center)
        for name, value in state[self.further].items() if self.further else ():
            getattr(self, self.further)[name].data.copy_(value)

    def _update(self, store: ProgramTable) -> None:
        """Update the ranker; `round` counts the updates before this update."""
        learnable = self.fit.learnable(store)
        if len(learnable):
            self._learn(store, learnable)

    @abstractmethod
    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        """Fit on the programs `index`, whose tasks have pairs to compare."""

    def run_fit(self, store: ProgramTable, index: torch.Tensor, **extras: Any) -> None:
        """Fit the present ranker; batches depend only on seed and round."""
        example = Example.of(store, self.ranker, index)
        self.fit(self.ranker.network, example, seed=self.stream(), **extras)

    def source_example(self, most: int) -> Example:
        """At most `most` source programs, relative to their whole tasks."""
        setting, store = self.setting, self.setting.source_store
        if store is None:
            raise PrunerError(f"{self.name} needs labelled source programs, which adapt.py has")
        generator = torch.Generator().manual_seed(setting.seed)
        index = torch.randperm(store.num_programs, generator=generator)[:most]
        # Before the draw: the centre of a task is the mean of all its programs, as in the source's
        # training.
        chosen = (store.relative() if self.source.relative else store).subset(index)
        learnable = OnlineFit.learnable(chosen)
        if not len(learnable):
            raise PrunerError(
                f"{self.name}: num_source={most} has no source task with two programs; give more"
            )
        return Example(store=chosen, index=learnable, scaler=self.source.scaler)

    def restart(self) -> None:
        """Take the weights of the source."""
        self.ranker.network.load_state_dict(self.source.network.state_dict())

    def stream(self) -> int:
        """Seed of this round."""
        return self.setting.seed * _STREAM + self.round

    def refit_scaler(self, store: ProgramTable, index: torch.Tensor) -> None:
        """Recompute the normalisation from target programs, of the source's kind."""
        seen = store.relative(self.ranker.centers) if self.ranker.relative else store
        fresh = seen.fit_scaler(index, "standard" if self.setting.standard else "max")
        self.ranker.scaler.load_state_dict(fresh.state_dict())


def copied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy weights by name."""
    return {name: value.detach().clone() for name, value in weights.items()}


def save_models(
    adaptation: Adaptation,
    path_of: Callable[[str], Path],
    *,
    start: Start | None,
    dataflow: DataflowKind,
    keys: Iterable[TaskKey],
    about: Mapping[str, Any],
) -> dict[str, Path]:
    """Write every model of an adaptation; returns file by name.

    `start` is the source model, `keys` the tasks learned from since, `about` information. The
    description lists the tasks still in the weights: those of `start` (not after training from
    scratch), and `keys` (not without updates).
    """
    version = features.FEATURE_SET_VERSION
    if start is None:  # random weights
        try:
            spec = ModelSpec.of(adaptation.setting.make_network)
        except PrunerError:  # made by a function: nobody could build it again
            return {}
        info = CheckpointInfo(model=spec, feature_version=version, dataflow=dataflow)
    elif adaptation.keeps_source:
        info = replace(start.info, **start.inherited)
    else:
        info = replace(start.info, seen_tasks={}, seen_workloads={}, lineage=[])
    info = replace(info, feature_version=version, metrics={}, git_commit=git_commit())
    info = info.with_seen(keys) if adaptation.learns else info
    written = {name: path_of(name) for name in adaptation.models}
    for name, ranker in adaptation.models.items():
        config = {**info.config, "adapted": {**about, "model": name}}
        save_checkpoint(written[name], ranker, replace(info, config=config))
    return written
