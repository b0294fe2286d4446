"""Measured programs as tensors.

* `dataset`: from record folders to programs in memory
* `reading`: from one record file to featurised programs
* `forms`: kept as features, or as decision vectors
* `cache`: the same, kept on disk
* `table`: all programs of a run without their features
* `store`: with all features in memory, without padding
* `vectors`: as decision vectors, whose features are computed where they are read
* `stream`: batches of those, task by task
* `loading`: how batches come to a fit
* `assemble`: the programs of a split's sides, or a choice of them
* `batch`: what a model sees
* `tokens`: primitives as tensors
* `relative`: features relative to the task
* `scaler`: normalisation
"""
