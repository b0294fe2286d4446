"""What a collection of pools is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from pruner.errors import PrunerError


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """``programs`` that run are collected of every task; the share ``evolved`` of them are
    mutations of the best of the others.

    Every program is timed twice, ``apart_s`` seconds or more apart and in another order. One whose
    two timings that agree best differ by more than the share ``agree`` is timed again, up to
    ``most`` timings in all. ``chunk`` programs are built before they are timed, one by one.
    """

    programs: int = 192
    evolved: float = 0.0
    apart_s: float = 120.0
    agree: float = 0.1
    most: int = 4
    chunk: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises `PrunerError` on numbers that cannot work."""
        if self.programs < 2:
            raise PrunerError(f"programs={self.programs}; use a whole number, 2 or more")
        if not 0 <= self.evolved < 1:
            raise PrunerError(f"pool.evolved={self.evolved}; use a share, 0 or more and below 1")
        if self.apart_s < 0 or not self.agree > 0 or self.most < 2 or self.chunk < 1:
            raise PrunerError(
                "pool: apart_s must be 0 or more, agree above 0, most 2 or more, chunk 1 or more"
            )

    @property
    def num_evolved(self) -> int:
        """Programs that come of the best of the others."""
        return round(self.evolved * self.programs)

    @property
    def num_random(self) -> int:
        """Programs that are drawn."""
        return self.programs - self.num_evolved
