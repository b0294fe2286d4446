"""Pruner: cost models and draft-then-verify search for tensor programs.

Rooms, and the one direction in which they may import each other:
``errors, arrays, files -> data -> program -> features -> models -> search -> tune -> study``
and ``cli``, the doors.
"""

__version__ = "0.1.0"
