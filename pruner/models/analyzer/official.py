"""The released analyzer (psa_model.py, "version 6"), to the digit.

Inputs are the 11 official symbols of :mod:`pruner.features.symbols.official`. docs/paper.md section
2.5 lists the differences from the paper: the maximum of compute and memory time instead of their
sum, elements in place of bytes, no memory penalty.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS, position
from pruner.models.analyzer.switches import Switches
from pruner.program.device import GpuDevice

_GIBI = float(2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialSwitches(Switches):
    """Terms of the released analyzer; all on is the release."""

    wave: bool = True  # blocks against multiprocessors
    warp: bool = True  # threads against whole warps
    registers: bool = True
    reuse: bool = True
    memory: bool = True

    @classmethod
    def group(cls, name: str) -> tuple[str, ...]:
        """The penalties of compute (``c``), or of memory (``m``), the paper's P_l0,m."""
        return ("wave", "warp", "reuse") if name == "c" else ("registers",)


def official_latency_ms(
    symbols: Float[np.ndarray, "program statement column"],
    device: GpuDevice,
    switches: OfficialSwitches | None = None,
) -> Float[np.ndarray, " program"]:
    """Predicted milliseconds [program]; infinite where all symbols are zero.

    Such a program could not be lowered. ``sum over statements of max(t_c, t_m)`` with ``t_c = #1
    reuse reg / (peak wave warp)`` and ``t_m = #5 / bandwidth``, numbers as in docs/paper.md section
    2.5.
    """
    on, device = switches or OfficialSwitches(), device.official()
    value = np.asarray(symbols, np.float64)

    def of(name: str) -> Float[np.ndarray, "program statement"]:
        return value[:, :, position(OFFICIAL_COLUMNS, name)]

    threads, blocks = np.maximum(of("num_threads"), 1), np.maximum(of("num_blocks"), 1)
    warps = np.ceil(threads / device.warp_size)
    warp = threads / device.warp_size / warps if on.warp else 1.0
    wave = _wave(blocks, warps, device) if on.wave else 1.0
    spill = np.maximum(of("registers") / device.register_cap, 1.0) if on.registers else 1.0
    reuse = 1 + 1 / np.maximum(of("reuse"), 1.0) if on.reuse else 1.0
    peak_gflops = device.peak_flops_per_s / 1e9
    compute = of("total_flops") * reuse / (peak_gflops * wave * warp / spill) / 1e6
    # As released: elements count as bytes, and 2^30 stands against decimal GB.
    memory = of("dram_elements") / (device.dram_bytes_per_s / 1e9) * 1000 / _GIBI
    slower = np.maximum(compute, memory) if on.memory else compute
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
