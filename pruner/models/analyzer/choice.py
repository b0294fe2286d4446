"""What ``model=symbolic`` asks for: a form of the analyzer, its ablation, its calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float

from pruner.arrays import Scores
from pruner.errors import PrunerError
from pruner.features.statement.analysis import analyse_stores
from pruner.features.symbols.official import official_symbols
from pruner.models.analyzer.analyzer import Analyzer, Form, load_analyzer
from pruner.models.analyzer.official import OfficialSwitches, official_latency_ms
from pruner.models.model import Model
from pruner.program.device import Device, GpuDevice
from pruner.program.nests import LoopNests
from pruner.program.replay import Definition, replay

AnyForm = Literal["official"] | Form
FORMS = ("official", *get_args(Form))
GROUPS = {None: "all penalties", "c": "compute", "m": "memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerChoice(Model):
    """Which analyzer ``model=symbolic`` asks for, as a model of ``conf/model``: nothing is learned.

    ``form``: ``official`` is the public release to the digit, ``paper`` the paper's form,
    ``hardware`` adds measured physics. ``without`` leaves a group of penalties out: ``c`` those of
    compute, ``m`` those of memory. ``calibrate``: measured programs that the rates are fitted to
    (0: the rates of conf/draft); what scores a task saw programs of the other half of tasks only.
    """

    needs_fit: ClassVar[bool] = False

    form: AnyForm = "hardware"
    without: Literal["c", "m"] | None = None
    calibrate: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises `PrunerError` for an unknown form or group, with the known ones."""
        if self.form not in FORMS:
            raise PrunerError(f"model.form={self.form} is unknown; known: {', '.join(FORMS)}")
        if self.without not in GROUPS:
            raise PrunerError(f"model.without={self.without} is unknown; known: c, m, null")
        if type(self.calibrate) is not int or self.calibrate < 0:
            raise PrunerError("model.calibrate must be a number of programs, 0 or more")
        if self.calibrate and self.form != "hardware":
            raise PrunerError(
                f"model.form={self.form} has no rates to fit; use model.form=hardware to calibrate"
            )

    def scorer(self, conf: Path, device: Device) -> "Analyzer | OfficialAnalyzer":
        """The analyzer of a device; rates from ``<conf>/draft``.

        Raises:
            DataError: unknown platform or a missing constant, with the fix.
            PrunerError: the released form was asked for a device that is no GPU.
        """
        if self.form == "official":
            if not isinstance(device, GpuDevice):
                raise PrunerError(
                    f"platform={device.name}: the released analyzer is for GPUs only; "
                    "use model.form=hardware"
                )
            return OfficialAnalyzer(device=device, without=self.without)
        loaded = load_analyzer(conf, device.name, form=self.form, without=self.without)
        return replace(loaded, device=device)  # with the constants that the user overrode


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialAnalyzer:
    """The public release: scores from its 11 symbols, which need the general engine."""

    device: GpuDevice
    without: Literal["c", "m"] | None = None

    def score_steps(
        self, dag: Definition, steps: Sequence[list[list[Any]]]
    ) -> Float[np.ndarray, " program"]:
        """``-log(milliseconds)`` of recorded steps of one task; minus infinity: not replayed."""
        switches = OfficialSwitches.without(self.without) if self.without else None

        def latency_ms(nests: LoopNests) -> Scores:
            symbols = official_symbols(nests, analyse_stores(nests))
            return official_latency_ms(symbols, self.device, switches)

        score = np.full(len(steps), -np.inf)
        for rows, found in replay(dag, steps, latency_ms).parts:
            score[rows] = -np.log(found)
        return score
