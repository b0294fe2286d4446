"""OpenCL devices, with the runtime that TVM's wheel lacks.

* `drivers`: where the loader and its drivers are, PoCL's of the extra ``opencl`` too
* `runtime`: TVM's runtime, compiled from ``runtime.cc`` and loaded, and the devices that it finds
* `launches`: a kernel's source and launch, to run it without TVM
"""
