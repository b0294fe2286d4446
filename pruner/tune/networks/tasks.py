"""The tasks of a network: distinct functions, how often each is called, its share of the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, arguments, flops, normalised

MIN_SHARE = 0.001  # of the network's arithmetic; below it a task is not worth trials


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkTask:
    """A function that the network calls ``weight`` times.

    ``key`` is the structural hash by which TVM's database knows it, ``flops`` those of one call.
    """

    name: str
    key: str
    module: Any
    weight: int
    flops: float
    shapes: Sequence[tuple[tuple[int, ...], str]] = field(default_factory=list)
    share: float = 0.0

    @property
    def tuned(self) -> bool:
        """Whether trials are spent on it: it has arithmetic, and enough of it."""
        return self.share >= MIN_SHARE

    @property
    def workload(self) -> Workload:
        """The task as the tuner takes it; tasks of the same operators may be similar."""
        kind = self.name.removesuffix(f"_{self.key[:8]}")
        return Workload(name=self.name, module=self.module, weight=float(self.weight), kind=kind)


def network_tasks(module: Any, target: Any) -> list[NetworkTask]:
    """Distinct tasks of a lowered module, the largest share of the work first."""
    relax = load_tvm().meta_schedule.relax_integration
    found: dict[str, NetworkTask] = {}
    for extracted in relax.extract_tasks(module, target):
        function = normalised(extracted.dispatched[0])
        key = task_key(function)
        weight = int(extracted.weight)
        if key in found:
            weight += found[key].weight
        found[key] = NetworkTask(
            name=f"{short_name(str(extracted.task_name))}_{key[:8]}",
            key=key,
            module=function,
            weight=weight,
            flops=flops(function),
            shapes=arguments(function),
        )
    total = sum(task.weight * task.flops for task in found.values()) or 1.0
    shared = [replace(task, share=task.weight * task.flops / total) for task in found.values()]
    return sorted(shared, key=lambda task: (-task.share, task.name))


def task_key(module: Any) -> str:
    """The structural hash by which TVM's database knows a normalised module."""
    found = load_tvm().ffi.structural_hash(module)
    return f"{found & (1 << 64) - 1:016x}"


def short_name(name: str) -> str:
    """The operators alone: ``fused_conv2d9_add7_relu4`` is ``conv2d_add_relu``."""
    words = [word.rstrip("0123456789") or word for word in name.split("_")]
    kept = [word for word in words if word not in ("fused", "tir", "")]
    return "_".join(kept)[:60]
