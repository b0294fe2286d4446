"""OpenCL devices, with the runtime that TVM's wheel lacks.

* `drivers`: where the loader and its drivers are, PoCL's of the extra ``opencl`` too
* `library`: ``runtime.cc`` compiled once a version of TVM
* `runtime`: that library in TVM's place, and the devices that it finds
* `launches`: a kernel's source and launch, to run it without TVM
"""
