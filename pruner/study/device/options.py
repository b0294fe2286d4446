"""What a campaign is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEAST_S = 20.0  # TVM's start and one batch: with less left of a box nothing is begun


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """A device, and how much is asked of it.

    ``platform``: the words that name it for every command. ``minutes`` in all, shared among the
    stages; infinite: every stage runs to its end. ``compile_only``: nothing is run, the device may
    be absent. ``trials`` an operator and policy, ``seconds`` a network where minutes are limited,
    ``pool`` programs a task of the uniform pools.
    """

    out: Path
    platform: Sequence[str]
    minutes: float = float("inf")
    compile_only: bool = False
    trials: int = 64
    network_trials: int = 640
    pool: int = 192
    operators: Sequence[str] = ()
    networks: Sequence[str] = ("resnet50", "bert_base")
    precisions: Sequence[str] = ("float32", "float16")
    checkpoint: Path | None = None  # of another device, for the stage of adaptation
    more: Sequence[str] = field(default_factory=tuple)  # further words of every tune.py

    def runs(self, name: str) -> Path:
        """The folder of a run of ``tune.py``."""
        return self.out / "tune" / name
