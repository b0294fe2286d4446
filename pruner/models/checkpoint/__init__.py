"""Checkpoints of this project and of the official release.

* `checkpoint`: weights, normalisation, and what refuses a wrong use
* `tensors`: its format: safetensors, weights and JSON
* `convert`: files of earlier versions, which PyTorch's format held
* `official`: the release's checkpoints in our PaCM
* `module_pickle`: pickled modules as plain data
"""
