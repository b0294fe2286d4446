"""Ansor's schedules: a record's steps applied to a compute DAG.

The mirror image of :mod:`pruner.program.tir`: ``skeleton`` reads steps (``tir/trace``) and groups
records by them, ``schedule`` is the state that they change (``tir/tree``), ``apply`` has a function
a step (``tir/primitives``, ``tir/rfactor``), ``bounds`` the sizes of loops and buffers
(``tir/regions``), and ``lower`` makes :class:`~pruner.program.nests.LoopNests`. ``recorded_task``
finds the operator of a record. There is no ``verify``: records are of programs that were measured.
"""
