"""Code and scratch memory of CPU programs, estimated from loop nests.

Scratch memory is exact but for memory that TVM shares between buffers. Code is a rough estimate:
every statement becomes as many vector instructions as the pragma or the compiler unrolls. It ranks
programs. :mod:`pruner.tune.measure.built_size` reads the size of a built program.
"""

import numpy as np

from pruner.arrays import Floats
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.cpu import CpuRates
from pruner.program.nests import Loop, LoopNests, Mark

_WHOLE_BYTES = 2000.0  # code of a program beside its loops: arguments are checked and unpacked
_STATEMENT_BYTES = 40.0  # code of one unrolled statement: its loads, arithmetic and store


def scratch_bytes(nests: LoopNests, cores: int) -> Floats:
    """Return the bytes [N] of all buffers, once a thread in a parallel loop."""
    out = np.zeros(nests.num_programs)
    for one in nests.allocations.values():
        if not one.buffer.is_param:
            bytes_ = np.full(nests.num_programs, float(one.buffer.bytes_per_element))
            for extent in one.extents:
                bytes_ = bytes_ * extent
            out += bytes_ * _threads(one.loops, cores, nests.num_programs)
    return out


def _threads(loops: tuple[Loop, ...], cores: int, num: int) -> Floats:
    out = np.ones(num)
    for loop in loops:
        if loop.mark == Mark.PARALLEL:
            out = out * loop.extent
    return np.minimum(out, cores)


def code_bytes(symbols: Symbols) -> Floats:
    """Estimate the bytes of code [N]."""
    unrolled = np.maximum(symbols["body"], np.minimum(CpuRates().unroll_limit, symbols["tile"]))
    return _WHOLE_BYTES + _STATEMENT_BYTES * unrolled.sum(axis=0)
