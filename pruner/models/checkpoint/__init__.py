"""Checkpoints of this project and of the official release.

* `checkpoint`: weights, normalisation, and what refuses a wrong use
* `archive`: PyTorch's files as data, nothing in them runs
* `tensors`: the same in safetensors' format, weights and JSON
* `official`: the release's checkpoints in our PaCM
* `module_pickle`: pickled modules as plain data
"""
