"""The tasks of the Ansor set, and how a task's file is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pruner.data.workload import parse_workload, workload_key
from pruner.errors import PrunerError
from pruner.program.dag.operators import dag_for_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """One workload: its record key and the operators fused behind it (known by file name only)."""

    workload_key: str
    fused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """File stem as record folders write it, e.g. ``conv2d_add_1_64_..._SAME``."""
        return parse_workload(self.workload_key).file_stem(self.fused)


def task(op: str, *args: Any, fused: tuple[str, ...] = ()) -> CollectTask:
    """Write a task without the JSON."""
    return CollectTask(workload_key=workload_key(op, *args), fused=fused)


# Every well-scheduled program runs in 0.01 to 1 ms on one core. relu alone is missing on purpose:
# on a CPU its schedule space has only two distinct programs. It is measured as a fused operator.
ANSOR_TASKS: tuple[CollectTask, ...] = (
    task("matmul", 128, 128, 128),
    task("conv2d", 1, 64, 28, 28, 64, 3, 3, 1, "SAME"),
    task("depthwise_conv2d", 1, 96, 56, 56, 3, 3, 1, "SAME"),
    task("conv2d", 1, 64, 28, 28, 64, 1, 1, 1, "VALID", fused=("add", "relu")),
    task("batch_matmul", 1, 8, 64, 64, 128),
    task("pool", "max", 1, 64, 56, 56, 3, 3, 2, "SAME"),
    task("reduction", [512, 1024], 1, False),
    task("matmul", 64, 512, 256),
    task("conv2d", 1, 3, 64, 64, 32, 7, 7, 2, "VALID"),
    task("conv2d", 1, 32, 28, 28, 64, 3, 3, 2, "SAME", fused=("add", "relu")),
    task("depthwise_conv2d", 1, 64, 56, 56, 5, 5, 2, "SAME"),
    task("pool", "avg", 1, 128, 28, 28, 3, 3, 1, "SAME"),
    task("conv2d", 1, 128, 14, 14, 128, 1, 1, 1, "SAME", fused=("add",)),
    task("matmul", 256, 256, 256),
    task("reduction", [64, 32, 28, 28], [2, 3], False),
)


def select_tasks(workload: str | list[Any], fused: tuple[str, ...] = ()) -> list[CollectTask]:
    """Return all tasks of the Ansor set ("all"), one by name, or the one of a given record key.

    Raises:
        PrunerError: no task of the set has that name; the key has no compute DAG, so that its
            records could not be read later.
    """
    if not isinstance(workload, str):
        key = json.dumps(workload)
        dag_for_workload(key, fused)
        return [CollectTask(workload_key=key, fused=fused)]
    if workload == "all":
        return list(ANSOR_TASKS)
    chosen = [entry for entry in ANSOR_TASKS if entry.name == workload]
    if not chosen:
        names = ", ".join(entry.name for entry in ANSOR_TASKS)
        raise PrunerError(
            f"no task of the Ansor set is called {workload!r}; use workload=all, one of {names}, "
            f"or a record key such as 'workload=[matmul_layer,96,96,96]'"
        )
    return chosen
