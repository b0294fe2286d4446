"""TVM's side of a tuning as ours: tasks, targets, results and the shared state."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.networks.pacm import PaCM
from pruner.paths import conf_folder
from pruner.program.device import Device, GpuDevice, load_device
from pruner.progress import Log
from pruner.search.decision_search import DecisionSearch
from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.measure.targets import CPU_TARGETS
from pruner.tune.phases import Phases
from pruner.tune.run.database import programs_of, records_of
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
from pruner.tune.tvm_import import load_intrinsics, load_tvm

_LOG = "tvm.s_tir.meta_schedule"  # a context does not give its own logger away
_DEVICE_KINDS = {"llvm": "cpu", "cuda": "gpu"}  # of the targets that have an analyzer
_MODELS: dict[str, Callable[[int], OnlineModel]] = {
    "pacm": lambda seed: AdaptedModel(Scratch(Setting(make_network=PaCM, seed=seed))),
    "xgboost": lambda seed: TreeModel(seed=seed),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaScheduleTask:
    """A task: program, target and random seed, from TVM's tuning context.

    ``context`` is a context of our own with a copy of TVM's rules: a reference to TVM's context,
    which refers to us, would keep both from being freed.
    """

    name: str
    seed: int  # TVM's random state when the task began
    context: Any
    log: Log

    @classmethod
    def of(cls, context: Any) -> MetaScheduleTask:
        """Read the context that TVM passes to its callbacks."""
        load_intrinsics(context.target)
        own = load_tvm().meta_schedule.TuneContext(
            mod=context.mod,
            target=context.target,
            space_generator=context.space_generator.clone(),
            task_name=str(context.task_name),
            num_threads=1,
            rand_state=int(context.rand_state),
        )
        return cls(
            name=str(context.task_name),
            seed=int(context.rand_state),
            context=own,
            log=logging.getLogger(_LOG).info,
        )

    @property
    def module(self) -> Any:
        """The module before it is scheduled."""
        return self.context.mod

    @property
    def target(self) -> Any:
        """The target of TVM."""
        return self.context.target

    def designs(self, schedules: Sequence[Any]) -> list[DesignSpace]:
        """Wrap TVM's design spaces as ours."""
        return [
            DesignSpace(self.module, self.target, schedule.trace, self.context)
            for schedule in schedules
        ]


def identity(context: Any) -> tuple[int, str]:
    """Return a key that is equal for equal programs and targets."""
    digest = importlib.import_module("tvm_ffi").structural_hash(context.mod)
    return int(digest), str(context.target)


def platform_of(target: Any, name: str | None, log: Log) -> Platform:
    """Find the platform `name`, or the target's best fit; raise `PrunerError` if none fits.

    A CPU is found by its instructions, a CUDA device by its architecture. If several fit, `log`
    gets a line.
    """
    kind = _DEVICE_KINDS.get(str(target.kind.name))
    files = sorted((conf_folder() / "platform").glob("*.yaml"))
    devices = {path.stem: load_device(path) for path in files}
    fitting = {key: device for key, device in devices.items() if device.kind == kind}
    if name is None and fitting:
        name = _cpu(target, log) if kind == "cpu" else _gpu(target, fitting, log)
    if name is None or name not in fitting:
        what = f"platform={name} describes no such device" if name else "no described device fits"
        known = ", ".join(sorted(fitting)) or "none; TVM's own strategy takes this target"
        raise PrunerError(f"target of kind {target.kind.name}: {what}; platform= one of {known}")
    cores = int(target.attrs.get("num-cores", 0)) or os.cpu_count() or 1
    device = "cuda" if kind == "gpu" else "cpu"
    return Platform(target=target, device=device, cores=cores if kind == "cpu" else 1, name=name)


def _cpu(target: Any, log: Log) -> str | None:
    has = importlib.import_module("tvm.target.codegen").target_has_features
    for cpu in reversed(CPU_TARGETS):
        if all(has([flag.replace("_", ".")], target) for flag in cpu.cpu_flags):
            return cpu.platform
    if not has(["sse2"], target):
        return None  # no x86-64
    log(
        f"this target generates code for any x86-64; drafted as {CPU_TARGETS[0].platform}. "
        "Name the processor (mcpu) in the target to use its vectors"
    )
    return CPU_TARGETS[0].platform


def _gpu(target: Any, devices: dict[str, Device], log: Log) -> str | None:
    """Find a device of the target's architecture (sm_90a counts as sm_90)."""
    # the suffix selects architecture-specific instructions of the same device
    architecture = re.sub(r"(?<=\d)[a-z]$", "", str(target.attrs.get("arch", "")))
    found = [
        name
        for name, device in devices.items()
        if isinstance(device, GpuDevice) and device.architecture == architecture
    ]
    if len(found) > 1:
        log(f"{architecture}: drafted for {found[0]}; platform= one of {', '.join(found)} chooses")
    return found[0] if found else None


def outcomes(results: Sequence[Any], log: Log) -> list[Outcome]:
    """Convert the runner's results of a round.

    If every program timed out in the builder, TVM's new workers did, importing TVM: none is blamed.
    """
    found = [_outcome(result) for result in results]
    if len(found) > 1 and all(one.error == "build_timeout" for one in found):
        log(
            f"all {len(found)} candidates of this round timed out in the builder, whose workers "
            "import TVM in that time; give builder=LocalBuilder(initializer=warm_worker)"
        )
        return [replace(one, error="build_no_worker") for one in found]
    return found


def _outcome(result: Any) -> Outcome:
    if result.error_msg is None and result.run_secs:
        return Outcome(costs_s=tuple(float(seconds) for seconds in result.run_secs))
    message = str(result.error_msg)
    # TVM joins the messages of builders and runners to one text
    stage = "build" if "Builder" in message.partition(":")[0] else "run"
    kind = "timeout" if "Timeout" in message else "error"
    return Outcome(error=f"{stage}_{kind}", message=message)


def know_earlier(
    database: Any, task: MetaScheduleTask, search: DecisionSearch, space: UnionSpace
) -> None:
    """Add a database's measurements on the same target to a search, if any ran."""
    if database is None:
        return
    records = [r for r in records_of(database, task.module, task.target) if r.run_secs]
    rows, latency_s, others = programs_of(records, space)
    if others:
        task.log(
            f"{task.name}: {others} of {len(records)} records of the database are of programs "
            "outside these design spaces"
        )
    # all failed: the workers never started, so nothing is learned about the programs
    if np.isfinite(latency_s).any():
        task.log(f"{task.name}: {len(latency_s)} programs of the database count as measured")
        search.know(rows, latency_s)


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
        """Create the shared model; raise `PrunerError` for an unknown model."""
        # otherwise an error that crosses TVM's C++ frames comes back as RuntimeError
        importlib.import_module("tvm_ffi").register_error("PrunerError", PrunerError)
        self.phases = Phases()
        self._platform, self._analyzer, self._seed = platform, analyzer, seed
        self._analyzers: dict[str, Analyzer] = {}
        if isinstance(model, str):
            if model not in _MODELS:
                known = ", ".join(_MODELS)
                raise PrunerError(f"model={model}: choose {known}, None or an OnlineModel")
            model = _MODELS[model](seed or 0)
        self._shared = None if model is None else SharedModel(model)

    def analyzer(self, target: Any, log: Log) -> Analyzer:
        """Return the analyzer of a target; raise `PrunerError` without a device."""
        if self._analyzer is not None:
            return self._analyzer
        text = str(target)
        if text not in self._analyzers:
            found = platform_of(target, self._platform, log)
            self._analyzers[text] = platform_analyzer(found)
        return self._analyzers[text]

    def open(self, task: MetaScheduleTask, designs: Sequence[DesignSpace]) -> UnionSpace:
        """Open the spaces of a task; raise `PrunerError` without legal programs."""
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

    def rng(self, task: MetaScheduleTask) -> np.random.Generator:
        """Make the random generator of a task, from our seed or TVM's."""
        if self._seed is None:
            return np.random.default_rng(task.seed)
        return np.random.default_rng([self._seed, *task.name.encode()])
