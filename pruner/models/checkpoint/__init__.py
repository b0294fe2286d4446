"""Checkpoints of this project and of the official release.

* `checkpoint`: weights, normalisation, and what refuses a wrong use
* `official`: the release's checkpoints in our PaCM
* `module_pickle`: pickled modules as plain data
"""
