"""Build and run candidates in worker processes.

A failure is an outcome of its candidate, never of the run.

* `measurer`: candidates in, outcomes out
* `jobs`: the jobs of worker processes; when the repeats of a measurement end
* `preload_tvm`: TVM, imported once for all workers
* `numerics`: inputs, how far results may be off, real-time priority
* `energy`: joules that a device has used
* `machine`: target, analyzer and devices of a platform
* `targets`: CPU targets
"""
