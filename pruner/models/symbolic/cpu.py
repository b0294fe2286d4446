"""The analyzer on CPUs: Eq. 1's sum of compute and memory time, from CPU symbols, no learning.

Per statement, in cycles of one core (throughput limits of an out-of-order core as the ECM model
counts them [Stengel et al., 2015, section 2]; device numbers from the platform file):

* arithmetic: operations / (peak operations a cycle * lanes used);
* *issue*: load and store instructions, and the overhead of loops that are not unrolled;
* *chain*: a reduction step waits for the one before, so few accumulators leave units idle;
* *choice*: deciding where padding begins;
* *register*: a tile that is not unrolled, or is larger than the registers, stores its results in
  every step and loads them again;
* *cache*: bytes that miss a cache, over the bandwidth of the next level;
* *balance*: the work of a parallel loop is done when the busiest core is done, and opening a
  parallel region costs time.

``seconds = sum over statements of (core cycles / clock) / (cores * balance) + bytes / bandwidth``.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pruner.features.draft import Symbols
from pruner.program.device import CpuDevice

Array = Float[np.ndarray, "..."]
_FLOAT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """The free constants, in cycles of one core unless named otherwise; default: any CPU."""

    load: float = 0.5  # one load instruction (two load ports)
    store: float = 1.0
    loop: float = 1.5  # per iteration of a loop that is not unrolled
    unroll_limit: float = 16.0  # statements a compiler unrolls by itself
    chain: float = 4.0  # latency of a multiply-add
    spill: float = 2.0  # per result that does not stay in registers, beside its load and store
    choice: float = 2.0
    special: float = 15.0  # one function call
    scalar: float = 1.0  # slow-down of arithmetic on single elements
    l1_bytes: float = 32.0  # per cycle between L1 and L2
    l2_bytes: float = 12.0  # per cycle between L2 and L3
    dram: float = 0.7  # share of the memory bandwidth that is reached
    region_us: float = 4.0  # opening a parallel region, microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSwitches:
    """Terms by group: ``_c`` of compute, ``_m`` of memory."""

    lanes_c: bool = True
    issue_c: bool = True
    chain_c: bool = True
    choice_c: bool = True
    balance_c: bool = True
    register_m: bool = True
    cache_m: bool = True

    @classmethod
    def without(cls, group: str) -> "CpuSwitches":
        """All terms but those of group ``c`` (compute) or ``m`` (memory)."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: not name.endswith("_" + group) for name in names})


def cpu_latency_s(
    symbols: Symbols, device: CpuDevice, rates: CpuRates, switches: CpuSwitches | None = None
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs."""
    on = switches or CpuSwitches()
    cycles = _core_cycles(symbols, device, rates, on)
    transfer = _transfer_cycles(symbols, rates, on)
    share = symbols["balance"] * device.num_cores
    if not on.balance_c:
        share = np.where(symbols["parallel"] > 1, float(device.num_cores), 1.0)
    seconds = (cycles + transfer) / device.clock_hz / share
    bytes_ = symbols["l3_traffic"] if on.cache_m else symbols["unique"]
    seconds = seconds + bytes_ / (device.dram_bytes_per_s * rates.dram)
    if on.balance_c:
        seconds = seconds + symbols["regions"] * rates.region_us * 1e-6
    return seconds.sum(axis=0)


def _core_cycles(s: Symbols, device: CpuDevice, c: CpuRates, on: CpuSwitches) -> Array:
    width = device.simd_bytes / _FLOAT_BYTES
    lanes = s["lanes"] if on.lanes_c else np.full_like(s["lanes"], width)
    peak = device.flops_per_cycle_per_core / width * lanes  # operations a cycle with these lanes
    compute = s["comp_count"] / peak * np.where(lanes > 1, 1.0, c.scalar)
    if on.chain_c:
        chains = np.maximum(s["accumulators"], 1)
        is_reduction = np.array(s.reductions)[:, None]
        steps = s["iterations"] / (np.maximum(s["tile"], 1) * np.maximum(s["lanes"], 1))
        waiting = steps * c.chain * np.maximum(s["tile"] / chains, 1)
        compute = np.maximum(compute, np.where(is_reduction, waiting, 0.0))
    out = compute + s["special"] * c.special
    if on.issue_c:
        out = out + (s["vector_loads"] + s["scalar_loads"]) * c.load
        turns = s["iterations"] / np.maximum(s["lanes"], 1)
        body = np.maximum(s["body"], np.minimum(c.unroll_limit, s["tile"]))
        out = out + turns / np.maximum(body, 1) * c.loop
    if on.choice_c:
        out = out + s["choices"] / np.maximum(s["lanes"], 1) * c.choice
    return out + _result_cycles(s, device, c, on)


def _result_cycles(s: Symbols, device: CpuDevice, c: CpuRates, on: CpuSwitches) -> Array:
    """Cycles that loads and stores of results cost."""
    stores = s["vector_stores"] + s["scalar_stores"]
    steps = np.maximum(s["steps"], 1)
    held = stores / steps * c.store
    if not on.register_m:
        return held
    limit = np.maximum(s["unroll"], c.unroll_limit)
    rolled = 1 / (1 + (limit / np.maximum(s["tile"], 1)) ** 4)
    over = np.clip(s["accumulators"] / device.vector_registers - 0.75, 0, 1)
    out_of_registers = np.maximum(rolled, over)
    return held + np.where(
        np.array(s.reductions)[:, None], stores * (c.store + c.load + c.spill) * out_of_registers, 0
    )


def _transfer_cycles(s: Symbols, c: CpuRates, on: CpuSwitches) -> Array:
    if not on.cache_m:
        return s["unique"] / c.l1_bytes + s["unique"] / c.l2_bytes
    return s["l1_traffic"] / c.l1_bytes + s["l2_traffic"] / c.l2_bytes
