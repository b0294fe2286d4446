"""OpenCL devices, with the runtime that TVM's wheel lacks.

* `runtime`: drivers, TVM's runtime, compiled from ``runtime.cc`` and loaded, and its devices
* `launches`: a kernel's source and launch, to run it without TVM
"""
