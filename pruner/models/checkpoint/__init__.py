"""Checkpoints of this project and of the official release.

* `checkpoint`: weights, normalisation, and checks against wrong use
* `tensors`: the format: safetensors, weights and JSON
* `convert`: files of earlier versions, in PyTorch's format
* `official`: the release's checkpoints in our PaCM
* `module_pickle`: pickled modules as plain data
"""
