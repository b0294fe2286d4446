"""Operators of torch that TVM's front end lacks or imports wrongly.

A file for each family. Most operators are rewritten by functions of torch's own operators, which
:func:`~pruner.tune.networks.operators.registry.replaces` registers as decompositions for
``ExportedProgram.run_decompositions``; each returns ``NotImplemented`` where TVM is right. The few
that need an operator of Relax are registered by
:func:`~pruner.tune.networks.operators.registry.converts`.

* `program`: the import of an exported program, which applies all of them
* `apart`: decompositions of single calls, which are kept for further networks
* `called_functions`: the calls of a module, without an export
* `complex_numbers`: programs with complex numbers, run on pairs of real tensors
"""

from pruner.tune.networks.operators import (  # noqa: F401  # these register their operators
    arithmetic,
    images,
    indexing,
    reductions,
    windows,
)
