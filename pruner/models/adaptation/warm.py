"""No adaptation, and plain fits from random, source or last weights."""

import torch

from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit, official_fit
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.training import build_network


class Unchanged(Adaptation):
    """Always score with the source model (``pam-no-update`` of the release)."""

    learns = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        pass


class Scratch(Adaptation):
    """A new random network every round, normalised by target programs alone.

    Online Pruner and Ansor of the release (``PAMModelInternal.fit_base`` without a loaded model).
    """

    keeps_source = False

    def __init__(self, setting: Setting, *, fit: OnlineFit | None = None) -> None:
        super().__init__(setting, fit=fit or official_fit(max_steps=100))
        self.ranker.network = build_network(setting.make_network, setting.seed).eval()

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        self.refit_scaler(store, index)
        self.ranker.network = build_network(self.setting.make_network, self.stream())
        self.run_fit(store, index)


class FineTune(Adaptation):
    """Start every round from the source weights: ``theta = fit(theta_source)``.

    The release's ``pruner_fine_tune_model.py`` does this once, by plain SGD at 7e-4
    (`fitting.released_fine_tuning`); the default here is Adam. The source's normalisation stays, as
    released.
    """

    name = "finetune"

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        self.restart()
        self.run_fit(store, index)


class Continue(Adaptation):
    """Continue every round from the last: ``theta_r = fit(theta_{r-1})``."""

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        # Once: later programs would shift the inputs under weights that were fitted to the first
        # vectors.
        if self.ranker.scaler.is_identity:
            self.refit_scaler(store, index)
        self.run_fit(store, index)
