"""Residual: add a small correction to a frozen source model."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.model import RankingNetwork
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.training.training import build_network


class CorrectedNetwork(RankingNetwork):
    """``base(x) + correction(x)``; base is frozen, always in evaluation mode."""

    def __init__(self, base: nn.Module, correction: nn.Module) -> None:
        super().__init__()
        self.base = base.requires_grad_(False).eval()
        self.correction = correction

    def train(self, mode: bool = True) -> "CorrectedNetwork":
        """Switch the correction only."""
        super().train(mode)
        # `super().train` reached it, too: batch norm of the source must keep its running averages.
        self.base.eval()
        return self

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Sum of both scores [program]."""
        return self.base(batch) + self.correction(batch)


def small_correction() -> TenSetMLP:
    """A TenSetMLP of width 64."""
    return TenSetMLP(width=64, num_residual=1)


class Residual(Adaptation):
    """``s(x) = s_source(x) + c(x)``: frozen source, new small c each round.

    The "plus" mode of TenSet (``transfer``: a local model learns the residual of the source model).
    Differs: TenSet regresses c on the residual; here c is fitted through the ranking loss of the
    sum, since ranking scores have no unit to subtract. c starts at zero: its last layer does.
    """

    name = "residual"

    def __init__(
        self,
        setting: Setting,
        *,
        make_correction: Callable[[], nn.Module] = small_correction,
        fit: OnlineFit | None = None,
    ) -> None:
        super().__init__(setting, fit=fit)
        self.make_correction = make_correction
        self.ranker.network = CorrectedNetwork(self.ranker.network, self._fresh()).eval()

    @property
    def models(self) -> dict[str, NeuralRanker]:
        """No models: a checkpoint cannot name a sum of two networks."""
        return {}

    def _fresh(self) -> nn.Module:
        correction = build_network(self.make_correction, self.stream())
        last = [module for module in correction.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return correction

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        network = self.ranker.network
        assert isinstance(network, CorrectedNetwork), type(network)
        network.correction = self._fresh()
        self.run_fit(store, index)
