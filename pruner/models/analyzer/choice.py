"""The user's choice for ``model=symbolic``: form, ablation, calibration."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pruner.errors import PrunerError, check_chosen
from pruner.models.analyzer.analyzer import FORMULAS, Analyzer, AnyFormula, load_analyzer, terms
from pruner.models.analyzer.constants import GROUPS, without
from pruner.models.model import Model
from pruner.program.device import CpuDevice, Device, GpuDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerChoice(Model):
    """Settings of ``model=symbolic`` in ``conf/model``; nothing is learned.

    ``form``: ``official`` is the public release to the digit, ``paper`` the paper's form,
    ``hardware`` adds measured physics. ``without`` leaves a group of penalties out, ``c`` those of
    compute, ``m`` those of memory, or a single penalty by its name (:func:`terms`). ``calibrate``:
    measured programs that the rates are fitted to (0: the rates of conf/draft); the rates that
    score a task were fitted to programs of the other half of tasks only.
    """

    needs_fit: ClassVar[bool] = False

    form: AnyFormula = "hardware"
    without: str | None = None
    calibrate: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_chosen("model.form", [self.form], FORMULAS)
        kinds = (terms(self.form, kind) for kind in (GpuDevice, CpuDevice))
        known = dict.fromkeys([*GROUPS, *(name for kind in kinds for name in kind)])
        if self.without is not None:
            check_chosen("model.without", [self.without], known)
        if type(self.calibrate) is not int or self.calibrate < 0:
            raise PrunerError("model.calibrate must be a number of programs, 0 or more")
        if self.calibrate and self.form != "hardware":
            raise PrunerError(
                f"model.form={self.form} has no rates to fit; use model.form=hardware to calibrate"
            )

    def scorer(self, conf: Path, device: Device) -> Analyzer:
        """The analyzer of a device.

        Raises DataError for an unknown platform, PrunerError for an unknown term, and for a CPU in
        another form than ``hardware``.
        """
        if self.form != "hardware" and not isinstance(device, GpuDevice):
            raise PrunerError(
                f"platform={device.name}: the {self.form} form is for GPUs only; "
                "use model.form=hardware"
            )
        without(terms(self.form, type(device)), self.without)
        loaded = load_analyzer(conf, device.name, form=self.form, without=self.without)
        return replace(loaded, device=device)  # with the user's overrides of the device's constants
