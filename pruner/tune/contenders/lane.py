"""What every contender of a race gets: one device, equal cores of the CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pruner.tune.measure.measurer import Platform

CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A device, ``cpu`` or ``cuda``, and how many cores of the CPU may work."""

    threads: int
    device: str = CPU

    @staticmethod
    def of(platform: Platform) -> Lane:
        """That of a platform's networks: its cores, or beside a GPU all cores of this process.

        On a GPU they only launch kernels, and compilers use them before anything is timed.
        """
        on_cpu = platform.device == CPU
        threads = platform.cores if on_cpu else len(os.sched_getaffinity(0))
        return Lane(threads=threads, device=platform.device)

    def __str__(self) -> str:
        """For people."""
        return f"{self.threads} threads" if self.device == CPU else self.device
