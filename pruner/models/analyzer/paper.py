"""The analyzer in the paper's form and the release's; every penalty is a switch.

Equation 1: ``L = sum over statements of (S8 / U_p + S5 bytes / U_m)`` with ``U_p = T_p`` times the
compute penalties and ``U_m = T_m`` times the memory penalties. P_l0,m and the ceiling form of the
parallel terms are known from readers of the paper, the others are the best reconstruction
(docs/paper.md section 2.3); P_l0,c and the schedulers of P_l1,c are as the released code has them.

========  ========================================  =============================================
P_l0,c    ``1 / (1 + 1 / (1 + S2 / M))``            reuse: operations of a thread per element of
                                                    the M that it moves to registers
P_l1,c    ``S4 / (w W)``, ``W = ceil(S4 / w)``,     whole warps of w threads; where blocks are
          times ``min(W, q) / q`` if S6 < n_sm      fewer than multiprocessors, a block's warps
                                                    on the q schedulers
P_l2,c    ``S6 / (n_sm ceil(S6 / n_sm))``           whole waves of blocks
P_l0,m    ``min(m_l0 / S1, 1)``                     registers of one thread
P_l1,m    ``min(m_l1 / S3, 1)``                     shared memory of one block
P_l2,m    ``S7 / (n ceil(S7 / n))``                 whole memory transactions of n elements
========  ========================================  =============================================

Every statement has its own symbols; what a block stages in shared memory is traffic of the
arithmetic that it is staged for, so it bears the S1 and the whole S3 of that statement (Fig. 3
gives S1, S3 and S5 of one statement with its operands). What accumulates in fragments has the peak
of tensor cores for T_p (which one the paper took is not known).

The release (psa_model.py, "version 6"), to the digit, reads the 11 official symbols of
:mod:`pruner.features.symbols.official`. docs/paper.md section 2.5 lists its differences from the
paper: the maximum of compute and memory time instead of their sum, elements in place of bytes, no
memory penalty.
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS, PerStatement, Symbols, position
from pruner.models.analyzer.constants import OFFICIAL_TERMS, PAPER_TERMS
from pruner.models.analyzer.tensor import matrix_peak
from pruner.program.device import GpuDevice
from pruner.program.nests import ACCUMULATORS, SHARED

_GIBI = float(2**30)


def paper_latency_s(
    symbols: Symbols, device: GpuDevice, on: Collection[str] = PAPER_TERMS
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs by Eq. 1 and this module's penalties."""
    compute = _peak(symbols, device) * _compute_penalties(symbols, device, on)
    memory = device.dram_bytes_per_s * _memory_penalties(symbols, device, on)
    bytes_ = symbols["l2_mem_footprint"] * symbols["global_bytes"]
    seconds = symbols["l2_comp_count"] / compute + bytes_ / memory
    return seconds.sum(axis=0)


def _peak(s: Symbols, device: GpuDevice) -> PerStatement:
    """Peak T_p [statement, program] (operations/s) of a statement's types.

    For statements that accumulate in fragments the peak of tensor cores, for others the harmonic
    mean of the peaks of lanes, weighted by operations.
    """
    half = device.half_flops_per_s or device.peak_flops_per_s
    slower = 1 + s["half_share"] * (device.peak_flops_per_s / half - 1)
    peak = device.peak_flops_per_s / slower
    if not s.on_tensor_cores:
        return peak
    on_cores = np.array([scope in ACCUMULATORS for scope in s.scopes])[:, None]
    return np.where(on_cores, matrix_peak(s, device), peak)


def _compute_penalties(s: Symbols, device: GpuDevice, on: Collection[str]) -> PerStatement:
    out = np.ones_like(s["l2_comp_count"])
    if "reuse_c" in on:
        moved = s["accumulators"] + s["shared_loads_least"] + s["global_loads"]
        reuse = 1 + s["l0_comp_count"] / np.maximum(moved, 1)
        out = out / (1 + 1 / reuse)
    if "warp_c" in on:
        warps = np.ceil(s["l1_para_info"] / device.warp_size)
        schedulers = device.schedulers_per_sm
        # Only then: with a full grid other blocks keep the schedulers busy.
        idle = s["l2_para_info"] < device.num_sms
        out = out * _filled(s["l1_para_info"], device.warp_size)
        out = out * np.where(idle, np.minimum(warps, schedulers) / schedulers, 1.0)
    if "wave_c" in on:
        out = out * _filled(s["l2_para_info"], device.num_sms)
    return out


def _memory_penalties(s: Symbols, device: GpuDevice, on: Collection[str]) -> PerStatement:
    out = np.ones_like(s["l2_comp_count"])
    staging = np.array([scope == SHARED for scope in s.scopes])[:, None]
    if "registers_m" in on:
        # A staging statement has no registers to speak of: it bears those of the arithmetic that it
        # feeds.
        served = np.where(s["shared_loads"] > 0, s["l0_mem_alloc"], 0).max(axis=0)
        registers = np.where(staging, served, s["l0_mem_alloc"])
        out = out * np.minimum(device.register_cap / np.maximum(registers, 1), 1)
    if "shared_m" in on:
        # All operands of a block share the limit, so each staging statement bears their sum.
        shared = np.where(staging, (s["l1_mem_alloc"] * s["own_bytes"]).sum(axis=0), 0)
        out = out * np.minimum(device.shared_bytes_per_block / np.maximum(shared, 1), 1)
    if "transaction_m" in on:
        run = np.maximum(s["l2_trans_dim"], 1)
        out = out * _filled(run, device.transaction_bytes / s["global_bytes"])
    return out


def _filled(used: PerStatement, unit: PerStatement | float | int) -> PerStatement:
    """Used share of the last unit: ``used / (unit ceil(used / unit))``."""
    return used / (np.ceil(used / unit) * unit)


def official_latency_ms(
    symbols: Float[np.ndarray, "program statement column"],
    device: GpuDevice,
    on: Collection[str] = OFFICIAL_TERMS,
) -> Float[np.ndarray, " program"]:
    """Predicted milliseconds [program]; infinite where all symbols are zero.

    Such a program could not be lowered. ``sum over statements of max(t_c, t_m)`` with ``t_c = #1
    reuse reg / (peak wave warp)`` and ``t_m = #5 / bandwidth``, numbers as in docs/paper.md section
    2.5.
    """
    device = device.official()
    value = np.asarray(symbols, np.float64)

    def of(name: str) -> Float[np.ndarray, "program statement"]:
        return value[:, :, position(OFFICIAL_COLUMNS, name)]

    threads, blocks = np.maximum(of("num_threads"), 1), np.maximum(of("num_blocks"), 1)
    warps = np.ceil(threads / device.warp_size)
    warp = threads / device.warp_size / warps if "warp" in on else 1.0
    wave = _wave(blocks, warps, device) if "wave" in on else 1.0
    spill = np.maximum(of("registers") / device.register_cap, 1.0) if "registers" in on else 1.0
    reuse = 1 + 1 / np.maximum(of("reuse"), 1.0) if "reuse" in on else 1.0
    peak_gflops = device.peak_flops_per_s / 1e9
    compute = of("total_flops") * reuse / (peak_gflops * wave * warp / spill) / 1e6
    # As released: elements count as bytes, and 2^30 stands against decimal GB.
    memory = of("dram_elements") / (device.dram_bytes_per_s / 1e9) * 1000 / _GIBI
    slower = np.maximum(compute, memory) if "memory" in on else compute
    real = np.any(value != 0, axis=2)
    total = np.where(real, slower, 0.0).sum(axis=1)
    return np.where(real.any(axis=1), total, np.inf)


def _wave(
    blocks: Float[np.ndarray, "..."], warps: Float[np.ndarray, "..."], device: GpuDevice
) -> Float[np.ndarray, "..."]:
    sms, schedulers = device.num_sms, device.schedulers_per_sm
    # Fewer blocks than multiprocessors: then schedulers of all of them are the units to fill.
    small = np.where(warps < schedulers, blocks * warps, schedulers * blocks)
    units = np.where(blocks >= sms, blocks, small)
    slots = np.where(blocks >= sms, sms, schedulers * sms)
    return units / (np.ceil(units / slots) * slots)
