"""A task as TVM's tuning context describes it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pruner.progress import Log
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.tvm_import import load_intrinsics, load_tvm

_LOG = "tvm.s_tir.meta_schedule"  # a context does not give its own logger away


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaScheduleTask:
    """A task: program, target and random seed, from TVM's tuning context.

    ``log`` writes a line into TVM's log.

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
