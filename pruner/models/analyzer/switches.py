"""Ablations of the hardware form on GPUs: which of its terms count."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSwitches:
    """Terms by group: ``_c`` of compute, ``_m`` of memory."""

    issue_c: bool = True
    wave_c: bool = True
    rolled_c: bool = True
    latency_c: bool = True
    spill_m: bool = True
    occupancy_m: bool = True
    transaction_m: bool = True
    cache_m: bool = True

    @classmethod
    def without(cls, group: str) -> "HardwareSwitches":
        """All terms but those of group ``c`` (compute) or ``m`` (memory)."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: not name.endswith("_" + group) for name in names})
