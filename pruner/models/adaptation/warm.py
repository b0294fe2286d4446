"""No adaptation, and the plain fits: from random weights, the source's, or the last round's."""

import torch

from pruner.models.adaptation.base import Adaptation, FittedAdaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit, official_fit
from pruner.models.programs.table import ProgramTable
from pruner.models.training.training import build_network


class Unchanged(Adaptation):
    """Score with the source model for ever (``pam-no-update`` of the release).

    The row that says what adaptation is worth. The centres of tasks become known as in
    the other methods, so that weights alone make the difference. Without
    a source model its scores mean nothing.
    """

    learns = False

    def _update(self, store: ProgramTable) -> None:
        pass


class Scratch(FittedAdaptation):
    """A new random network every round, with normalisation of the target programs alone.

    Online Pruner and online Ansor of the release (``PAMModelInternal.fit_base`` without a loaded
    model). Of a source only its kind of inputs is used.
    """

    keeps_source = False

    def __init__(self, setting: Setting, *, fit: OnlineFit | None = None) -> None:
        super().__init__(setting, fit=fit or official_fit(max_steps=100))
        self.ranker.network = build_network(setting.make_network, setting.seed).eval()

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        self.refit_scaler(store, index)
        self.ranker.network = build_network(self.setting.make_network, self.stream())
        self.run_fit(store, index)


class FineTune(FittedAdaptation):
    """Every round from the source weights again: ``theta = fit(theta_source)``.

    The release's ``pruner_fine_tune_model.py`` does this once, by plain SGD at 7e-4
    (`fitting.released_fine_tuning`); the default here is Adam. The source's normalisation stays, as
    released.
    """

    def __init__(self, setting: Setting, *, fit: OnlineFit | None = None) -> None:
        setting.needed_source("finetune")
        super().__init__(setting, fit=fit)

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        source = self.setting.needed_source("finetune")
        self.ranker.network.load_state_dict(source.network.state_dict())
        self.run_fit(store, index)


class Continue(FittedAdaptation):
    """Every round from where the last one ended: ``theta_r = fit(theta_{r-1})``.

    What TVM's MetaSchedule does with its MLP between full refits. Without a source, round 0 starts
    from random weights and normalisation of the first target programs.
    """

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        if self.ranker.scaler.is_identity:
            self.refit_scaler(store, index)
        self.run_fit(store, index)
