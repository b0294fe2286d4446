"""The analyzer in the paper's form: compute plus memory time, every penalty a switch.

Equation 1: ``L = sum over statements of (S8 / U_p + S5 bytes / U_m)`` with ``U_p = T_p`` times the
compute penalties and ``U_m = T_m`` times the memory penalties. P_l0,m and the ceiling form of the
parallel terms are known from readers of the paper, the others are the best reconstruction
(docs/paper.md section 2.3):

========  =====================================  ================================================
P_l0,c    ``1 / (1 + S1 / S2')``                 reuse: elements held against operations a step
P_l1,c    ``S4 / (w ceil(S4 / w))``              whole warps of w threads
P_l2,c    ``S6 / (n_sm ceil(S6 / n_sm))``        whole waves of blocks
P_l0,m    ``min(m_l0 / S1, 1)``                  registers of one thread
P_l1,m    ``min(m_l1 / S3, 1)``                  shared memory of one block
P_l2,m    ``S7 / (n ceil(S7 / n))``              whole memory transactions of n elements
========  =====================================  ================================================
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.closed.draft import Symbols
from pruner.program.device import GpuDevice

_BYTES = 4.0  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSwitches:
    """Penalties by level: ``_c`` of compute, ``_m`` of memory (the ablations of Table 10)."""

    reuse_c: bool = True
    warp_c: bool = True
    wave_c: bool = True
    registers_m: bool = True
    shared_m: bool = True
    transaction_m: bool = True

    @classmethod
    def without(cls, group: str) -> "PaperSwitches":
        """All penalties but those of group ``c`` (compute) or ``m`` (memory)."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: not name.endswith("_" + group) for name in names})


def paper_latency_s(
    symbols: Symbols, device: GpuDevice, switches: PaperSwitches | None = None
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs (Eq. 1 and the penalties of this module)."""
    on = switches or PaperSwitches()
    s1, s3, s4 = symbols["l0_mem_alloc"], symbols["l1_mem_alloc"], symbols["l1_para_info"]
    s5, s6, s7 = (
        symbols["l2_mem_footprint"], symbols["l2_para_info"], symbols["l2_trans_dim"],
    )  # fmt: skip
    flops = symbols["l2_comp_count"]
    compute = np.ones_like(s1)
    if on.reuse_c:
        moved = np.maximum(symbols["shared_loads"] + symbols["global_loads"], 0)
        count = symbols["l0_comp_count"]
        compute = compute * np.where(count > 0, count / np.maximum(count + moved, 1), 1.0)
    if on.warp_c:
        compute = compute * _filled(s4, device.warp_size)
    if on.wave_c:
        compute = compute * _filled(s6, device.num_sms)
    memory = np.ones_like(s1)
    if on.registers_m:
        # the spilling statement moves its data through memory: the worst one slows the kernel's
        memory = memory * np.minimum(device.register_cap / np.maximum(s1.max(axis=0), 1), 1)
    if on.shared_m:
        capacity = device.shared_bytes_per_block / _BYTES
        memory = memory * np.minimum(capacity / np.maximum(s3.sum(axis=0), 1), 1)
    if on.transaction_m:
        memory = memory * _filled(np.maximum(s7, 1), device.transaction_bytes / _BYTES)
    seconds = flops / (device.peak_flops_per_s * compute)
    seconds = seconds + s5 * _BYTES / (device.dram_bytes_per_s * memory)
    return seconds.sum(axis=0)


def _filled(used: Float[np.ndarray, "..."], unit: float) -> Float[np.ndarray, "..."]:
    return used / (np.ceil(used / unit) * unit)
