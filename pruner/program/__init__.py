"""Operators, schedules and loop nests of N programs at once, without TVM.

``dag`` holds expressions and compute DAGs, ``index`` the algebra of loop indices. Two engines,
``te`` for Ansor's records and ``tir`` for MetaSchedule's traces, apply a schedule and lower it to
the same ``nests``, which all other packages read. ``relaxed`` records this arithmetic as formulas
of tile sizes. ``replay`` chooses the engine for recorded programs. ``device`` describes the
machine.
"""
