"""Energy where no counter is, and size of CPU programs, estimated from their loops.

    joules = operations * joules_per_flop + bytes from DRAM * joules_per_byte + watts * seconds

Energies are modelled: caches, instruction fetch and clock frequencies are not in them. They rank
programs of one device by time and traffic; joules are an order of magnitude. Sources:

* *operations*: a 32-bit addition takes .38 pJ and a multiplication 1.31 pJ in 7 nm, so .85 pJ an
  operation [Jouppi et al., Ten lessons from three generations shaped Google's TPUv4i, ISCA 2021,
  Table 2, which updates Horowitz, Computing's energy problem, ISSCC 2014];
* *bytes*: 64 bits take 1,300 pJ from DDR memory and 250 to 450 pJ from HBM2 [the same table];
* *watts*: half of the thermal design power of a core or a multiprocessor, because a server at rest
  uses about half of its peak power [Barroso and Hoelzle, The case for energy-proportional
  computing, IEEE Computer, 2007]. A core: 350 W / 56 (Intel Xeon Platinum 8480+); a multiprocessor:
  700 W / 132 (NVIDIA H100 SXM).
"""

import numpy as np

from pruner.arrays import Floats
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.constants import CpuRates
from pruner.program.device import CpuDevice, Device, GpuDevice
from pruner.program.nests import Loop, LoopNests, Mark

JOULES_PER_FLOP = 0.85e-12
JOULES_PER_BYTE = {"cpu": 1300e-12 / 8, "gpu": 350e-12 / 8}
WATTS_PER_UNIT = {"cpu": 350 / 56 / 2, "gpu": 700 / 132 / 2}  # of a core, of a multiprocessor


def energy_model_j(symbols: Symbols, latency_s: Floats, device: Device) -> Floats:
    """Model the joules [N] of one run of each program that takes `latency_s` [N]."""
    if isinstance(device, GpuDevice):
        units = device.num_sms
        flops, moved = symbols["l2_comp_count"], symbols["l2_mem_footprint"]
        bytes_ = moved * symbols["global_bytes"]
    else:
        assert isinstance(device, CpuDevice), device
        units = device.num_cores
        flops, bytes_ = symbols["comp_count"], symbols["l3_traffic"]
    switched = flops * JOULES_PER_FLOP + bytes_ * JOULES_PER_BYTE[device.kind]
    return np.asarray(switched.sum(axis=0) + units * WATTS_PER_UNIT[device.kind] * latency_s)


_WHOLE_BYTES = 2000.0  # code of a program beside its loops: arguments are checked and unpacked
_STATEMENT_BYTES = 40.0  # code of one unrolled statement: its loads, arithmetic and store


def scratch_bytes(nests: LoopNests, cores: int) -> Floats:
    """Return the bytes [N] of all buffers, once a thread in a parallel loop.

    Exact but for memory that TVM shares between buffers.
    """
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
    """Estimate the bytes of code [N], roughly, to rank programs."""
    unrolled = np.maximum(symbols["body"], np.minimum(CpuRates().unroll_limit, symbols["tile"]))
    return _WHOLE_BYTES + _STATEMENT_BYTES * unrolled.sum(axis=0)
