"""Time baselines beside our programs: torch, onnxruntime, OpenVINO, untuned TVM.

* `baselines`: the list of baselines, and their common device and cores
* `runners`: how each loads a network or an operator and runs it, in a process of its own
* `benchmark`: alternating turns, medians, spread, relative errors
* `compare_runs`: the network or kernels of a run beside baselines and other runs
"""
