"""What every adaptation method is: target programs in round by round, a ranker out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import nn

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.models.adaptation.fitting import Example, OnlineFit, normalised
from pruner.models.checkpoint.checkpoint import ADAPTED
from pruner.models.model import Network
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.scaler import Center, ColumnScaler
from pruner.models.programs.table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.training.training import build_network

_STREAM = 1_000_003  # rounds of one run never reach it, so every (seed, round) has its own stream


class Setting:
    """What an adaptation starts from.

    `make_network` builds an untrained network. `source` is the ranker that was trained on the
    source platform, with the normalisation it was trained with; without it a method that starts
    from weights starts from random ones. `source_store` has labelled programs of the source
    platform (absolute features) for the methods that look at them again. Without a source,
    `relative` and `standard` say what a fresh network sees: features relative to the task, standard
    scores (otherwise: divided by column maxima).
    """

    # Not a dataclass: Hydra turns dataclass arguments of what it instantiates into its own nodes.
    def __init__(
        self,
        *,
        make_network: Callable[[], Network],
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

    def needed_source(self, method: str) -> NeuralRanker:
        """The source ranker; raises PrunerError where there is none."""
        if self.source is None:
            raise PrunerError(f"{method} needs a model of the source platform; give checkpoint=RUN")
        return self.source

    def needed_store(self, method: str) -> ProgramTable:
        """The source programs; raises PrunerError where there are none."""
        if self.source_store is None:
            raise PrunerError(f"{method} needs labelled source programs, which adapt.py has")
        return self.source_store


def source_example(setting: Setting, method: str, most: int) -> Example:
    """At most `most` source programs as the source model sees them, drawn evenly from all.

    They are relative to their whole tasks, labelled by the best of the sample. Raises PrunerError
    where the setting has no source model or no source programs.
    """
    ranker, store = setting.needed_source(method), setting.needed_store(method)
    generator = torch.Generator().manual_seed(setting.seed)
    index = torch.randperm(store.num_programs, generator=generator)[:most]
    seen = store.relative() if ranker.relative else store
    chosen = normalised(seen.subset(index), ranker.scaler)
    return Example(store=chosen, index=OnlineFit.learnable(chosen))


class Adaptation(ABC):
    """One ranker that follows a target platform.

    Once a round `update` gets all labelled target programs so far; `ranker` is what scores until
    the next one. A network that sees relative features needs the same centre of a task in fits and
    in scores: fitting relative to the measured programs, which are the model's own favourites, and
    scoring relative to the candidates makes it see other inputs than it learned from. (K80 to
    V100, fine-tuning on 40 programs a task: Top-1 0.87 over tasks instead of 0.95 with either
    centre in both places.) So a task gets its centre once: the mean of its first population where
    `meet` told it, else the mean of its first measured programs.

    `keeps_source`: what the source learned is still in its weights. `learns`: so is what the target
    taught.
    """

    keeps_source: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.round = 0
        source = setting.source
        if source is None:
            network = build_network(setting.make_network, setting.seed)
            ranker = NeuralRanker(network, ColumnScaler(), relative=setting.relative)
        else:
            ranker = deepcopy(source)
        self._ranker = ranker.eval()

    @property
    def ranker(self) -> NeuralRanker:
        """What scores now, in evaluation mode; replaced or changed by `update`."""
        return self._ranker

    def meet(self, key: TaskKey, population: ProgramFeatures) -> None:
        """Take the mean of a task's first population as its centre; later calls change nothing."""
        valid = population.valid
        if self.ranker.relative and key not in self.ranker.centers and valid.any():
            batch = ProgramBatch.of(population.take(valid), key.platform)
            self.ranker.centers[key] = Center.of(batch)

    def update(self, store: ProgramTable) -> None:
        """Learn from all labelled target programs so far (absolute features)."""
        if self.ranker.relative:
            for number in store.task.unique().tolist():
                if (key := store.keys[number]) not in self.ranker.centers:
                    self.ranker.centers[key] = _center(store, number)
        self._update(store)
        self.round += 1

    @abstractmethod
    def _update(self, store: ProgramTable) -> None:
        """The method itself; `round` counts the updates before this one."""

    @property
    def models(self) -> dict[str, NeuralRanker]:
        """What it leaves for others to go on from, by name; of the class of its source.

        `ADAPTED` is what scores now.
        """
        return {ADAPTED: self.ranker}

    def state_dict(self) -> dict[str, Any]:
        """Everything a restored adaptation needs to go on exactly; `torch.save` can write it."""
        return {
            "round": self.round,
            "network": _copied(self.ranker.network),
            "scaler": _copied(self.ranker.scaler),
            "centers": [
                (asdict(key), asdict(center)) for key, center in self.ranker.centers.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of an adaptation with the same setting."""
        self.round = state["round"]
        self.ranker.network.load_state_dict(state["network"])
        self.ranker.scaler.load_state_dict(state["scaler"])
        self.ranker.centers.clear()
        for key, center in state["centers"]:
            known = TaskKey(**{**key, "fused": tuple(key["fused"])})
            self.ranker.centers[known] = Center(**center)


class FittedAdaptation(Adaptation):
    """An adaptation whose update is a fit of a network on the target programs."""

    def __init__(self, setting: Setting, *, fit: OnlineFit | None = None) -> None:
        super().__init__(setting)
        self.fit = fit or OnlineFit()

    def _update(self, store: ProgramTable) -> None:
        learnable = self.fit.learnable(store)
        if len(learnable):
            self._learn(store, learnable)

    @abstractmethod
    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        """Fit on the programs `index` of a store that has some to compare."""

    def run_fit(self, store: ProgramTable, index: torch.Tensor, **extras: Any) -> None:
        """Fit the present ranker; batches depend on the seed and the round only."""
        self.fit(self.ranker.network, self.example(store, index), seed=self.stream(), **extras)

    def example(self, store: ProgramTable, index: torch.Tensor) -> Example:
        """Programs as the present ranker sees them."""
        return Example.of(store, self.ranker, index)

    def stream(self) -> int:
        """A seed for everything random in this round."""
        return self.setting.seed * _STREAM + self.round

    def refit_scaler(self, store: ProgramTable, index: torch.Tensor) -> None:
        """Recompute the normalisation from target programs, of the kind the source has."""
        seen = store.relative(self.ranker.centers) if self.ranker.relative else store
        fresh = seen.fit_scaler(index, "standard" if self.setting.standard else "max")
        self.ranker.scaler.load_state_dict(fresh.state_dict())


def _center(store: ProgramTable, task: int) -> Center:
    return Center.of(store.programs(store.programs_of([task])))


def _copied(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
