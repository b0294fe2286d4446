"""Measuring CPU schedules with Ansor (TVM 0.19), which lives in a virtual environment of its own.

``tasks`` and ``targets`` say what is measured, ``driver`` starts one isolated child process per
(task, target), ``worker`` is that child. ``worker`` runs inside the Ansor environment, so it
imports, directly or not, nothing but the standard library, numpy and tvm.
"""
