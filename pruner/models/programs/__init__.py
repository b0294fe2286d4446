"""Measured programs as tensors.

* `dataset`: from record folders to programs in memory
* `reading`: from one record file to featurised programs
* `cache`: the same, kept on disk
* `store`: all programs of a run, without padding
* `assemble`: the programs of a split's sides, or a choice of them
* `batch`: what a model sees
* `tokens`: primitives as tensors
* `relative`: features relative to the task
* `scaler`: normalisation
"""
