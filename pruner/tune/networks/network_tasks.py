"""The tasks of a network: distinct functions, call counts, shares of work."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, arguments, flops, normalised

MIN_SHARE = 0.001  # of the network's arithmetic; below it a task is not worth trials


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkTask:
    """A function that the network calls ``weight`` times.

    ``key`` is the structural hash by which TVM's database finds it, ``flops`` those of one call.
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
        """True if it has enough arithmetic to be worth trials."""
        return self.share >= MIN_SHARE

    @property
    def workload(self) -> Workload:
        """The task as a workload; tasks of equal operators may be similar."""
        kind = self.name.removesuffix(f"_{self.key[:8]}")
        return Workload(name=self.name, module=self.module, weight=float(self.weight), kind=kind)


def network_tasks(module: Any, target: Any) -> list[NetworkTask]:
    """Extract the distinct tasks of a lowered module, largest share first."""
    relax = load_tvm().meta_schedule.relax_integration
    found: dict[str, NetworkTask] = {}
    for extracted in relax.extract_tasks(module, target):
        function = normalised(extracted.dispatched[0])
        key = task_key(function)
        weight = int(extracted.weight)
        # functions that differ only in their names are one task once normalised
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
    # ties by name, so that every process has the same order
    return sorted(shared, key=lambda task: (-task.share, task.name))


def task_key(module: Any) -> str:
    """Compute the structural hash by which TVM's database finds a module."""
    found = load_tvm().ffi.structural_hash(module)
    return f"{found & (1 << 64) - 1:016x}"


def short_name(name: str) -> str:
    """Keep the operators of a name: ``fused_conv2d9_add7_relu4`` is ``conv2d_add_relu``."""
    words = [word.rstrip("0123456789") or word for word in name.split("_")]
    kept = [word for word in words if word not in ("fused", "tir", "")]
    # names of tasks become names of files
    return "_".join(kept)[:60]
