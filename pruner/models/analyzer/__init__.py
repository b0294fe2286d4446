"""The symbol-based analyzer: latency from symbols and device numbers, without learning.

* `analyzer`: the entry point: scores of step lists or loop nests
* `choice`: form, ablation and calibration as a user sets them
* `paper`: GPUs, the forms of the paper and of its release
* `hardware`: GPUs, the form with the physics of measured programs
* `tensor`: GPUs, programs on tensor cores
* `cpu`: CPUs
* `constants`: rates of the hardware form; terms to leave out
* `columns`: the analyzer's terms of a program, as inputs of a learned model
* `estimates`: code and scratch memory of CPU programs, modelled joules
* `derivatives`: scores in torch, differentiable in tile sizes
* `quality`: quality of the draft: Best-k; rates fitted to a few measurements
"""
