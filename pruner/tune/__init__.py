"""Live tuning: the only room with TVM. ``from pruner.tune import operator, this_cpu, tune``.

* `workloads`: what is tuned: operators, TVMScript files, lists of them
* `networks`: whole networks, and the tasks they consist of
* `spaces`: design spaces of a task
* `measure`: build and run candidates
* `run`: the loop and its files
* `rivals`: searches of others
* `contenders`: networks in the hands of others, timed beside ours
* `metaschedule`: our search and model inside TVM's own tuning
* `collect`: records of random and evolved schedules, by Ansor
* `pools`: pools of measured programs, evenly drawn, to learn from
* `deploy`: the way out: a tuned network as one library, checked against torch
* `compiling`: scheduled programs compiled, and what TVM is told meanwhile
* `cuda`: TVM's CUDA runtime, and its compiler where there is no driver
* `lanes`: vectors of CUDA programs that TVM cannot write
* `unrolling`: loops of CUDA programs that nvcc must unroll, not TVM
* `vector_math`: exp, erf, tanh as vector instructions of CPUs
* `child`: jobs in a process of their own
* `analyzer`: what drafts for a platform
* `phases`: where the seconds go
* `faults`: errors of TVM that are no refusal of a program
* `tvm_import`: TVM, imported once
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pruner.tune.run.options import TuneOptions, this_cpu
    from pruner.tune.run.result import Tuned
    from pruner.tune.run.tuning import tune, tuned_module
    from pruner.tune.workloads import operator

__all__ = ["TuneOptions", "Tuned", "operator", "this_cpu", "tune", "tuned_module"]

_HOMES = {
    "TuneOptions": "run.options",
    "Tuned": "run.result",
    "operator": "workloads",
    "this_cpu": "run.options",
    "tune": "run.tuning",
    "tuned_module": "run.tuning",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: Ansor's process uses this room without torch and TVM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
