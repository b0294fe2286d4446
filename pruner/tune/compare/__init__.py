"""What a user would run instead, timed beside us: torch, onnxruntime, TVM as it comes.

* `baselines`: the list of baselines, and the device and cores that all of them get
* `runners`: how each loads a network or an operator and runs it
* `jobs`: what the process of a baseline does
* `benchmark`: turns one after another, medians, spread, relative errors
* `runs`: the network or kernels of a run beside baselines and other runs
"""
