"""Live tuning, the only package with TVM: ``from pruner.tune import operator, this_cpu, tune``.

* `workloads`: operators, TVMScript files, and lists of them
* `networks`: complete networks and their tasks
* `spaces`: design spaces of a task
* `measure`: build and run candidates
* `run`: the tuning loop and its files
* `rivals`: other tuners: MetaSchedule and Ansor
* `contenders`: baselines of a network: torch, onnxruntime, TVM
* `metaschedule`: our search and cost model inside TVM's own tuning
* `collect`: records of random and evolved schedules, by Ansor
* `pools`: measured sets: evenly sampled programs to learn from
* `deploy`: a tuned network as one library, checked against torch
* `compiling`: compile scheduled programs, with TVM's options
* `cuda`: TVM's CUDA runtime, and compilation without a driver
* `opencl`: OpenCL devices, with a runtime beside TVM's wheel
* `lanes`: write vectors as loops that TVM's CUDA code generator cannot write
* `unrolling`: let nvcc unroll loops of CUDA programs instead of TVM
* `vector_math`: exp, erf, tanh as vector instructions of CPUs
* `kinds`: kinds of TVM's targets
* `child`: jobs in child processes
* `analyzer`: the analyzer of a platform
* `phases`: the time of each phase
* `faults`: errors of TVM that are not a refusal of a program
* `tvm_import`: import TVM once
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
    """Import a name on first use: Ansor's process uses this package without torch and TVM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
