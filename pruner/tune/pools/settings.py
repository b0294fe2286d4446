"""The settings of a collection of pools."""

from dataclasses import dataclass

from pruner.errors import PrunerError


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many programs of a task are collected, and their timing.

    ``programs`` that run are collected of every task; the share ``evolved`` of them are mutations
    of the best random programs.

    Every program is timed twice, at least ``apart_s`` seconds apart and in another order. If the
    two timings that agree best differ by more than the share ``agree``, it is timed again, up to
    ``most`` timings in all. ``chunk`` programs are built before they are timed, in turn.
    """

    programs: int = 192
    evolved: float = 0.0
    apart_s: float = 120.0
    agree: float = 0.1
    most: int = 4
    chunk: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
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
        """Number of programs that are mutations of good programs."""
        return round(self.evolved * self.programs)

    @property
    def num_random(self) -> int:
        """Number of programs that are drawn."""
        return self.programs - self.num_evolved
