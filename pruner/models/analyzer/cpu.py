"""The analyzer on CPUs: Eq. 1's sum of compute and memory time.

Per statement, in cycles of one core (throughput limits of an out-of-order core as the ECM model
counts them [Stengel et al., 2015, section 2]; device numbers from the platform file):

* arithmetic: operations / (peak operations a cycle * lanes used);
* *issue*: load and store instructions; together with one instruction per vector operation and two
  per iteration of a loop that is not unrolled, over the width of the core's front end;
* *chain*: a reduction step waits for the one before, so few accumulators leave units idle;
* *choice*: deciding where padding begins;
* *register*: a tile that is not unrolled stores its results in every step and loads them again. A
  tile that is larger than the registers also stores and loads operands. Both lengthen the chain;
* *cache*: bytes that miss a cache, over the bandwidth of the next level;
* *balance*: the work of a parallel loop is done when the busiest core is done, and opening a
  parallel region costs time.

``seconds = sum over statements of (core cycles / clock) / (cores * balance) + bytes / bandwidth``.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import PerStatement, Symbols
from pruner.models.analyzer.switches import CPU_TERMS
from pruner.program.device import CpuDevice

_FLOAT32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """The free constants, in cycles of one core unless named otherwise."""

    load: float = 0.5  # one load instruction (two load ports)
    store: float = 1.0
    loop_instructions: float = 2.0  # per iteration of a loop that is not unrolled
    issue: float = 4.0  # instructions that a core starts in a cycle
    unroll_limit: float = 64.0  # vector operations a compiler unrolls by itself
    chain: float = 4.0  # latency of a multiply-add
    spill: float = 1.5  # stores and loads per step and result of a tile beyond the registers
    forward: float = 5.0  # latency of a store that the next step loads
    window: float = 16.0  # reduction steps that a core looks ahead, beyond one tile
    overlap: float = 4.0  # exponent of the norm that joins the units of a core
    choice: float = 1.0
    special: float = 15.0  # one function call
    automatic: float = 1.2  # slow-down of arithmetic where only the compiler vectorises
    l1_bytes: float = 32.0  # per cycle between L1 and L2
    l2_bytes: float = 12.0  # per cycle between L2 and L3
    dram: float = 0.7  # share of the memory bandwidth that is reached
    region_us: float = 10.0  # opening a parallel region, microseconds


def cpu_latency_s(
    symbols: Symbols, device: CpuDevice, rates: CpuRates, on: Collection[str] = CPU_TERMS
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs."""
    cycles = _core_cycles(symbols, device, rates, on)
    levels = ("l1_traffic", "l2_traffic") if "cache_m" in on else ("unique", "unique")
    transfer = symbols[levels[0]] / rates.l1_bytes + symbols[levels[1]] / rates.l2_bytes
    share = symbols["balance"] * device.num_cores
    # Without the term a parallel program counts as perfectly balanced, a serial one as one core.
    if "balance_c" not in on:
        share = np.where(symbols["parallel"] > 1, float(device.num_cores), 1.0)
    seconds = (cycles + transfer) / device.clock_hz / share
    # Without cache terms every byte moves once, the least possible traffic.
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
    out_of_registers = np.zeros_like(lanes)
    if "register_m" in on:
        out_of_registers = _out_of_registers(s, device, c)
    stores = s["vector_stores"] + s["scalar_stores"]
    again = stores / s["held"] * out_of_registers
    if "issue_c" in on:
        loads, kept = s["vector_loads"] + s["scalar_loads"] + again, stores / s["steps"] + again
        operations = s["iterations"] / s["lanes"]
        # The compiler unrolls small tiles by itself, whatever the schedule's pragma is.
        body = np.maximum(s["body"], np.minimum(c.unroll_limit, s["tile"]))
        units += [loads * c.load, kept * c.store]
        units.append((operations * (1 + c.loop_instructions / body) + loads + kept) / c.issue)
    if "chain_c" in on:
        latency = c.chain + out_of_registers / s["held"] * c.forward
        waiting = s["iterations"] / (s["accumulators"] * s["lanes"]) * latency
        # Out-of-order execution starts the next tile while this one's short chain still waits.
        waiting = waiting * s["steps"] / (s["steps"] + c.window)
        units.append(np.where(np.array(s.reductions)[:, None], waiting, 0.0))
    # Units of a core work at the same time: the norm is a soft maximum, 4 lies between sum and
    # maximum.
    busy = sum((unit**c.overlap for unit in units), np.zeros_like(lanes)) ** (1 / c.overlap)
    out = busy + s["special"] * c.special
    if "choice_c" in on:
        out = out + s["choices"] / s["lanes"] * c.choice
    return out


def _out_of_registers(s: Symbols, device: CpuDevice, c: CpuRates) -> PerStatement:
    """Results that each reduction step stores and loads again, per result of the tile."""
    limit = np.maximum(s["unroll"], c.unroll_limit)
    # A soft step at the limit: 0 well below it, 1 well above, so that calibration has a gradient.
    rolled = 1 / (1 + (limit / s["tile"]) ** 4)
    # The outer product of a step keeps its shorter side in registers, and an element of the other.
    per_step = s["tile"] * s["lanes"] / np.maximum(s["iterations"], 1)
    shorter = np.minimum(s["vector_loads"], s["scalar_loads"]) * per_step
    needed = s["accumulators"] + shorter + 1
    # The compiler interleaves the tile's operations: beyond the registers nearly all are spilled.
    spilled = c.spill / (1 + (device.vector_registers / needed) ** 8)
    return np.where(np.array(s.reductions)[:, None], np.maximum(rolled, spilled), 0.0)
