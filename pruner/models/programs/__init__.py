"""Measured programs as tensors.

* `dataset`: from record folders to a table of programs
* `reading`: from a record file to featurised programs
* `cache`: featurised programs on disk
* `program_table`: all programs of a run, without padding
* `loading`: batches for a fit
* `assemble`: the programs of a split's sides, or a choice of them
* `batch`: the input of a model
* `scaler`: features relative to the task, and normalisation
"""
