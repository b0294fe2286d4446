"""What the parent tells a child process; no import beyond the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

SLOW_PROGRAM_EXIT = 75  # exit status of a child that met a program slower than its timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What one child measures, and how.

    ``num_random`` and ``num_evolved`` count valid records. A set of ``repeats`` that spreads more
    than ``max_spread`` (largest minus smallest, relative to the median) is taken again.
    A program that takes longer than ``program_timeout_s`` to build and run is noted as failed.
    """

    workload_key: str
    fused: list[str]
    target: str
    hardware_params: list[int]
    journal: str
    num_random: int
    num_evolved: int
    seed: int
    repeats: int
    min_repeat_ms: int
    max_spread: float
    program_timeout_s: float
    evolution_rounds: int = 2
    population: int = 128
    generations: int = 3

    def to_json(self) -> str:
        """Return the text handed to the child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(text))
