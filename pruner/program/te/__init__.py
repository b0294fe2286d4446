"""Ansor's schedules: a record's steps applied to a compute DAG.

The mirror image of :mod:`pruner.program.tir`; files of the same name do the same job.

* ``steps``: the vocabulary, schedule steps as values, and their reader (``tir/trace``)
* ``skeleton``: records grouped by steps; the numbers in the steps are decisions
* ``schedule``: the state that steps change, stages and their loops (``tir/tree``)
* ``apply``: :func:`~apply.apply`, one function a step (``tir/apply_trace``, ``tir/trace``,
  ``tir/primitives``, ``tir/rfactor``)
* ``bounds``: how large loops and buffers are (``tir/regions``)
* ``lower``: :func:`~lower.lower`, from the schedule to :class:`~pruner.program.nests.LoopNests`
  (``tir/lower``)
* ``recorded_task``: a record's operator, the order of its arguments and the operators fused behind
  it, confirmed by its splits and stages

There is no ``verify``: records are of programs that were measured.
"""
