"""Half way between the source's weights and the target's."""

from collections.abc import Mapping
from typing import Any

import torch

from pruner.models.adaptation.base import FittedAdaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.store import ProgramStore


class WeightSpaceEnsemble(FittedAdaptation):
    """Scores with ``(1 - share) theta_source + share theta_r``; ``theta_r = fit(theta_{r-1})``.

    WiSE-FT (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR'22): the mean of the
    weights before and after fine-tuning keeps what the source knows where the few target labels say
    nothing else; 0.5 is their choice where no share can be tuned. BatchNorm's running statistics
    are averaged alike. Differs: they fine-tune once, here every round goes on from the last.

    Raises ValueError for a share outside [0, 1].
    """

    def __init__(
        self, setting: Setting, *, share: float = 0.5, fit: OnlineFit | None = None
    ) -> None:
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"wise.share: got {share}; need [0, 1]")
        self._source = setting.needed_source("wise").network.state_dict()
        super().__init__(setting, fit=fit)
        self.share = share
        self.tuned = {name: value.clone() for name, value in self._source.items()}

    def _learn(self, store: ProgramStore, index: torch.Tensor) -> None:
        network = self.ranker.network
        network.load_state_dict(self.tuned)
        self.run_fit(store, index)
        self.tuned = {name: value.clone() for name, value in network.state_dict().items()}
        between = {
            name: torch.lerp(source, self.tuned[name], self.share)
            for name, source in self._source.items()
            if source.is_floating_point()
        }
        network.load_state_dict(self.tuned | between)

    def state_dict(self) -> dict[str, Any]:
        """The fitted weights besides the rest."""
        tuned = {name: value.clone() for name, value in self.tuned.items()}
        return {**super().state_dict(), "tuned": tuned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.tuned = {name: value.clone() for name, value in state["tuned"].items()}
