"""Checkpoints of this project and of the official release.

* `checkpoint`: weights, normalisation, and checks against wrong use
* `tensors`: the format: safetensors, weights and JSON; also files of earlier versions
* `official`: the release's checkpoints in our PaCM, read as plain data
"""
