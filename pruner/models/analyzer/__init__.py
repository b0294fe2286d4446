"""The symbol-based analyzer: latency from symbols and a device's numbers, no learning.

* `analyzer`: the one entry: scores of step lists or loop nests
* `choice`: form, ablation and calibration as a user asks for them
* `paper`: GPUs, the paper's form
* `hardware`: GPUs, the form that measured programs ask for
* `tensor`: GPUs, programs on tensor cores
* `official`: GPUs, the release's form
* `cpu`: CPUs
* `switches`: terms to leave out, and those of the hardware form, on tensor cores, too
* `constants`: rates of the hardware form
* `columns`: what it makes of a program, as inputs of a learned model
* `calibrate`: rates fitted to a few measurements
* `quality`: how good the draft is: Best-k
"""
