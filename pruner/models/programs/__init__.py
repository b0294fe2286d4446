"""Measured programs as tensors.

* `dataset`: from record folders to a table of programs
* `reading`: from one record file to featurised programs
* `cache`: the same, kept on disk
* `table`: all programs of a run, without padding
* `loading`: how batches come to a fit
* `assemble`: the programs of a split's sides, or a choice of them
* `batch`: what a model sees
* `scaler`: features relative to the task, and normalisation
"""
