"""Terms of an analyzer form as switches for ablations."""

from dataclasses import dataclass, fields
from typing import Self

from pruner.errors import PrunerError

GROUPS = {"c": "compute", "m": "memory"}


class Switches:
    """Base of dataclasses of flags: ``_c`` terms of compute, ``_m`` of memory."""

    __slots__ = ()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all terms."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def group(cls, name: str) -> tuple[str, ...]:
        """Terms of the group ``c`` or ``m``."""
        return tuple(term for term in cls.names() if term.endswith(f"_{name}"))

    @classmethod
    def without(cls, name: str | None) -> Self:
        """All terms except a group or a term; raises `PrunerError` for an unknown name."""
        if name is None:
            return cls()
        left_out = cls.group(name) if name in GROUPS else (name,)
        if not set(left_out) <= set(cls.names()):
            known = ", ".join((*GROUPS, *cls.names()))
            raise PrunerError(f"model.without={name} is unknown; known: {known}")
        return cls(**{term: term not in left_out for term in cls.names()})


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSwitches(Switches):
    """Terms of the hardware form on GPUs: ``_c`` of compute, ``_m`` of memory."""

    issue_c: bool = True
    wave_c: bool = True
    rolled_c: bool = True
    latency_c: bool = True
    spill_m: bool = True
    occupancy_m: bool = True
    transaction_m: bool = True
    cache_m: bool = True
