"""Measuring CPU schedules with Ansor (TVM 0.19), which lives in a virtual environment of its own.

``tasks`` and ``targets`` say what is measured, ``driver`` starts one isolated child process per
(task, target), ``worker`` is that child. ``worker`` and ``te_operators`` run inside the Ansor
environment, so they import nothing but the standard library, numpy and tvm.
"""
