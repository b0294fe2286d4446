"""One door to the three forms of the analyzer: scores of records or of decision vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

from pruner.errors import PrunerError, UnsupportedProgram
from pruner.features.draft import DraftPlan, Symbols
from pruner.models.symbolic.constants import DraftConstants, load_constants
from pruner.models.symbolic.hardware import HardwareSwitches, hardware_latency_s
from pruner.models.symbolic.paper import PaperSwitches, paper_latency_s
from pruner.program.dag import ComputeDAG
from pruner.program.device import Device, GpuDevice, load_device
from pruner.program.skeleton import group_programs

Form = Literal["paper", "hardware"]
_CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """Draft scores from symbols: ``-log(predicted seconds)``, higher is better.

    ``form``: ``paper`` is the reconstruction of the paper, ``hardware`` adds measured physics. The
    released form needs the official symbols (:mod:`pruner.models.symbolic.official`).
    """

    device: GpuDevice
    constants: DraftConstants
    form: Form = "hardware"
    without: str | None = None  # ablation: "c" or "m" switches that group of penalties off

    def latency_s(self, symbols: Symbols) -> Float[np.ndarray, " program"]:
        """Predicted seconds."""
        if self.form == "paper":
            chosen = PaperSwitches.without(self.without) if self.without else None
            return paper_latency_s(symbols, self.device, chosen)
        terms = HardwareSwitches.without(self.without) if self.without else None
        return hardware_latency_s(symbols, self.device, self.constants, terms)

    def scores(
        self, plan: DraftPlan, decisions: Int64[np.ndarray, "program slot"]
    ) -> Float[np.ndarray, " program"]:
        """Scores of decision vectors of one skeleton."""
        parts = [
            -np.log(self.latency_s(plan.symbols(decisions[start : start + _CHUNK])))
            for start in range(0, len(decisions), _CHUNK)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def score_steps(
        self, dag: ComputeDAG, steps: Sequence[list[list[Any]]]
    ) -> Float[np.ndarray, " program"]:
        """Scores of Ansor step lists of one task; minus infinity where a skeleton has no plan."""
        out = np.full(len(steps), -np.inf)
        for group in group_programs(steps)[0]:
            try:
                plan = DraftPlan(dag, group.skeleton)
            except UnsupportedProgram:
                continue
            out[group.rows] = self.scores(plan, group.decisions)
        return out


def load_analyzer(
    conf: Path, platform: str, *, form: Form = "hardware", without: str | None = None
) -> Analyzer:
    """The analyzer of a platform from ``<conf>/platform`` and ``<conf>/draft``.

    Raises:
        DataError: unknown platform or a missing constant, with the fix.
        PrunerError: the platform is no GPU.
    """
    device: Device = load_device(conf / "platform" / f"{platform}.yaml")
    if not isinstance(device, GpuDevice):
        raise PrunerError(
            f"platform={platform}: the analyzer has no CPU form yet; choose a platform of kind gpu"
        )
    constants = load_constants(conf / "draft", platform)
    return Analyzer(device=device, constants=constants, form=form, without=without)
