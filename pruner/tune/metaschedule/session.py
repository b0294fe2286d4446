"""The state that all tasks of a tuning share.

It holds analyzer, learned model, settings and clock.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.networks.pacm import PaCM
from pruner.models.training.fit import cpu_threads
from pruner.progress import Log
from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.metaschedule.target import platform_of
from pruner.tune.metaschedule.task import MetaScheduleTask, identity
from pruner.tune.phases import Phases
from pruner.tune.run.learning import (
    AdaptedModel,
    LiveLearner,
    OnlineModel,
    SharedModel,
    TreeModel,
)
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace

_MODELS: dict[str, Callable[[int], OnlineModel]] = {
    "pacm": lambda seed: AdaptedModel(Scratch(Setting(make_network=PaCM, seed=seed))),
    "xgboost": lambda seed: TreeModel(seed=seed),
}


class MetaScheduleSession:
    """The state of a constructor's call; TVM's copies for tasks share it."""

    def __init__(
        self,
        *,
        platform: str | None,
        analyzer: Analyzer | None,
        model: str | OnlineModel | None,
        seed: int | None,
    ) -> None:
        """Create the shared model.

        Raises:
            PrunerError: an unknown model.
        """
        # otherwise an error that crosses TVM's C++ frames comes back as RuntimeError
        importlib.import_module("tvm_ffi").register_error("PrunerError", PrunerError)
        self.phases = Phases()
        self._platform, self._analyzer, self._seed = platform, analyzer, seed
        self._analyzers: dict[str, Analyzer] = {}
        made = _model(model, seed or 0)
        self._shared = None if made is None else SharedModel(made)

    def analyzer(self, target: Any, log: Log) -> Analyzer:
        """Return the analyzer that drafts for a target.

        Raises:
            PrunerError: no described device fits the target.
        """
        if self._analyzer is not None:
            return self._analyzer
        text = str(target)
        if text not in self._analyzers:
            found = platform_of(target, self._platform, log)
            self._analyzers[text] = platform_analyzer(found)
        return self._analyzers[text]

    def open(self, task: MetaScheduleTask, designs: Sequence[DesignSpace]) -> UnionSpace:
        """Open the spaces of a task.

        Raises:
            PrunerError: no program is legal.
        """
        return open_spaces(
            designs,
            name=task.name,
            analyzer=self.analyzer(task.target, task.log),
            learns=self._shared is not None,
            phases=self.phases,
            log=task.log,
        )

    def learner(self, task: MetaScheduleTask, space: UnionSpace) -> LiveLearner | None:
        """Make the learner of a task, None without a model or features."""
        if self._shared is None or not space.has_features:
            return None
        digest, target = identity(task.context)
        platform = self.analyzer(task.target, task.log).device.name
        key = TaskKey(
            platform=platform, task=f"{task.name}-{digest:x}", workload_key="[]", target=target
        )
        return LiveLearner(key, space, self._shared, self.phases, self.rng(task))

    def one_thread(self) -> AbstractContextManager[None]:
        """Limit torch to a thread: two slow down so small a network."""
        return cpu_threads(1)

    def rng(self, task: MetaScheduleTask) -> np.random.Generator:
        """Make the random generator of a task, from our seed or TVM's."""
        if self._seed is None:
            return np.random.default_rng(task.seed)
        return np.random.default_rng([self._seed, *task.name.encode()])


def _model(model: str | OnlineModel | None, seed: int) -> OnlineModel | None:
    if not isinstance(model, str):
        return model
    if model not in _MODELS:
        raise PrunerError(f"model={model}: choose {', '.join(_MODELS)}, None or an OnlineModel")
    return _MODELS[model](seed)
