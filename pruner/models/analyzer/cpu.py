"""The analyzer on CPUs: Eq. 1's sum of compute and memory time.

Per statement, in cycles of one core (throughput limits of an out-of-order core as the ECM model
counts them [Stengel et al., 2015, section 2]; device numbers from the platform file):

* arithmetic: operations / (peak operations a cycle * lanes used);
* *issue*: load and store instructions (a reduction loads the results that it stores); together with
  one instruction per vector operation and two per iteration of a loop that is not unrolled, over
  the width of the core's front end;
* *chain*: a reduction step waits for the one before, so few accumulators leave units idle;
* *choice*: deciding where padding begins, once for loops of the tile that a condition lacks;
* *register*: a tile that is not unrolled stores its results in every step and loads them again. A
  tile that is larger than the registers also stores and loads operands. Both lengthen the chain;
* *cache*: bytes that miss a cache, over the bandwidth of the next level, beside the arithmetic;
* *balance*: the work of a parallel loop is done when the busiest core is done, and opening a
  parallel region costs time.

``seconds = sum over statements of (core cycles / clock) / (cores * balance) + bytes / bandwidth``.
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import PerStatement, Symbols
from pruner.models.analyzer.constants import CPU_TERMS, CpuRates
from pruner.program.device import CpuDevice

_FLOAT32_BYTES = 4.0


def cpu_latency_s(
    symbols: Symbols, device: CpuDevice, rates: CpuRates, on: Collection[str] = CPU_TERMS
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs."""
    cycles = _core_cycles(symbols, device, rates, on)
    share = symbols["balance"] * device.num_cores
    # Without the term a parallel program counts as perfectly balanced, a serial one as one core.
    if "balance_c" not in on:
        share = np.where(symbols["parallel"] > 1, float(device.num_cores), 1.0)
    seconds = cycles / device.clock_hz / share
    bytes_ = symbols["l3_traffic"] if "cache_m" in on else symbols["unique"]
    seconds = seconds + bytes_ / (device.dram_bytes_per_s * rates.dram)
    if "balance_c" in on:
        seconds = seconds + symbols["regions"] * rates.region_us * 1e-6
    return seconds.sum(axis=0)


def _core_cycles(s: Symbols, device: CpuDevice, c: CpuRates, on: Collection[str]) -> PerStatement:
    width = device.simd_bytes / _FLOAT32_BYTES  # lanes that flops_per_cycle_per_core counts
    lanes = s["lanes"] if "lanes_c" in on else np.full_like(s["lanes"], width)
    peak = device.flops_per_cycle_per_core / width * lanes  # operations a cycle with these lanes
    units = [s["comp_count"] / peak * np.where(s["automatic"] > 0, c.automatic, 1.0)]
    reduces = np.array(s.reductions)[:, None]
    out_of_registers = np.zeros_like(lanes)
    if "register_m" in on:
        out_of_registers = np.where(reduces, _out_of_registers(s, device, c), 0.0)
    stores = s["vector_stores"] + s["scalar_stores"]
    again = stores * out_of_registers
    if "issue_c" in on:
        kept = stores / s["steps"] + again
        # a reduction also loads the results that it stores
        loads = s["vector_loads"] + s["scalar_loads"] + np.where(reduces, kept, again)
        operations = s["iterations"] / s["lanes"]
        # The compiler unrolls small tiles by itself, whatever the schedule's pragma is.
        body = np.maximum(s["body"], np.minimum(c.unroll_limit, s["tile"]))
        units += [loads * c.load, kept * c.store]
        units.append((operations * (1 + c.loop_instructions / body) + loads + kept) / c.issue)
    if "chain_c" in on:
        latency = c.chain + out_of_registers * c.forward
        waiting = s["iterations"] / (s["accumulators"] * s["lanes"]) * latency
        # Out-of-order execution starts the next tile while this one's short chain still waits.
        waiting = waiting * s["steps"] / (s["steps"] + c.window)
        units.append(np.where(reduces, waiting, 0.0))
    # Without cache terms every byte moves once, the least possible traffic.
    levels = ("l1_traffic", "l2_traffic") if "cache_m" in on else ("unique", "unique")
    units += [s[levels[0]] / c.l1_bytes, s[levels[1]] / c.l2_bytes]
    # Units of a core work at the same time, also prefetchers: the norm is a soft maximum, 4 lies
    # between sum and maximum.
    busy = sum((unit**c.overlap for unit in units), np.zeros_like(lanes)) ** (1 / c.overlap)
    # Where the pragma writes out reduction steps, the compiler finds a part of the vectors of
    # unmarked lanes only: 0 for a single step, towards 1 for many.
    written = (1 - 1 / s["written"]) * s["automatic"] * reduces
    out = busy * (1 + (c.written - 1) * written) + s["special"] * c.special
    if "choice_c" in on:
        out = out + s["choices"] * c.choice
    return out


def _out_of_registers(s: Symbols, device: CpuDevice, c: CpuRates) -> PerStatement:
    """Results that each reduction step stores and loads again, per result of the tile."""
    limit = np.maximum(s["unroll"], c.unroll_limit)
    # A soft step at the limit: 0 well below it, 1 well above, so that calibration has a gradient.
    rolled = 1 / (1 + (limit / s["tile"]) ** 4)
    # The outer product of a step keeps its shorter side in registers, and two of the other.
    per_step = s["tile"] * s["lanes"] / np.maximum(s["iterations"], 1)
    shorter = np.minimum(s["vector_loads"], s["scalar_loads"]) * per_step
    needed = s["accumulators"] + shorter + 2
    # The compiler interleaves the tile's operations: beyond the registers nearly all are spilled.
    spilled = c.spill / (1 + (device.vector_registers / needed) ** 8)
    return np.maximum(rolled, spilled)
