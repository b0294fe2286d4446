"""Operators of torch that TVM's front end lacks or imports wrongly.

A file for each family. Most operators are rewritten by functions of torch's own operators, which
:func:`~pruner.tune.networks.operators.registry.replaces` registers as decompositions for
``ExportedProgram.run_decompositions``; each returns ``NotImplemented`` where TVM is right. The few
that need an operator of Relax are registered by
:func:`~pruner.tune.networks.operators.registry.converts`.
"""

from pruner.tune.networks.operators import (
    arithmetic,
    bags,
    filling,
    indexing,
    normalization,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
    scattering,
    sorting,
)
from pruner.tune.networks.operators.program import converters, decomposed

__all__ = [
    "arithmetic",
    "bags",
    "converters",
    "decomposed",
    "filling",
    "indexing",
    "normalization",
    "pooling",
    "products",
    "quantization",
    "reductions",
    "resizing",
    "scattering",
    "sorting",
]
