"""Ansor's schedules: the steps of a record, applied to a compute DAG for N programs at once.

The mirror image of :mod:`pruner.program.tir`; files of the same name do the same job.

* ``steps``: the vocabulary, schedule steps as values, and their reader (``tir/trace``)
* ``skeleton``: records grouped by steps, the numbers in them being decisions
* ``schedule``: the state that steps change, stages and their loops (``tir/tree``)
* ``apply``: :func:`~apply.apply`, one function a step (``tir/replay``, ``tir/trace``,
  ``tir/primitives``, ``tir/rfactor``)
* ``bounds``: how large loops and buffers are (``tir/regions``, ``tir/places``)
* ``lower``: :func:`~lower.lower`, from the schedule to :class:`~pruner.program.nests.LoopNests`
  (``tir/lower``)
* ``replay``: :class:`~replay.Replay`, both for many programs of which some may be at fault
  (``tir/replay``)
* ``fusion``: which operators a record has fused, told by its steps

There is no ``verify``: records are of programs that were measured.
"""
