"""Pruner: cost models and draft-then-verify search for tensor programs.

The packages, and the only direction of imports between them:
``errors, arrays, files -> data -> program -> features -> models -> search -> tune -> study``
``-> cli`` (the commands). docs/library.md lists the calls for users.
"""

__version__ = "0.1.0"
