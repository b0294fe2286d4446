"""Live tuning: ``from pruner.tune import operator, this_cpu, tune``.

This is the only package with TVM.

* `workloads`: operators, TVMScript files, and lists of them
* `networks`: complete networks and their tasks
* `spaces`: design spaces of a task
* `measure`: build and run candidates
* `run`: the tuning loop and its files
* `rivals`: other tuners: MetaSchedule and Ansor
* `compare`: baselines timed beside ours: torch, onnxruntime, TVM
* `metaschedule`: our search and cost model inside TVM's own tuning
* `pools`: measured sets: evenly sampled programs to learn from
* `deploy`: a tuned network as one library, checked against torch
* `compiling`: compile scheduled programs, with TVM's options; divide uneven vectors of CPUs
* `kinds`: kinds of targets: CPU, CUDA, OpenCL, PoCL
* `opencl`: OpenCL devices: the runtime that TVM lacks, launches without TVM
* `cuda`: TVM's CUDA runtime, and compilation without a driver
* `lanes`: write vectors and unrolled loops of GPU programs as TVM and nvcc take them
* `vector_math`: exp, erf, tanh as vector instructions of CPUs
* `phases`: the time of each phase
* `tvm_import`: import TVM once, its tensor-core instructions parsed once a user
"""

from typing import TYPE_CHECKING

from pruner.lazy import on_first_use

if TYPE_CHECKING:
    from pruner.tune.run.result import Tuned
    from pruner.tune.run.tune_options import TuneOptions, this_cpu
    from pruner.tune.run.tuning import tune, tuned_module
    from pruner.tune.workloads import operator

__all__ = ["TuneOptions", "Tuned", "operator", "this_cpu", "tune", "tuned_module"]

# Ansor's process uses this package without torch and TVM.
__getattr__ = on_first_use(
    __name__,
    {
        "TuneOptions": "run.tune_options",
        "Tuned": "run.result",
        "operator": "workloads",
        "this_cpu": "run.tune_options",
        "tune": "run.tuning",
        "tuned_module": "run.tuning",
    },
)
