"""Moses: train only the parameters that carry over to the target."""

import torch
from torch import Tensor, nn

from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import Example, OnlineFit
from pruner.models.programs.program_table import ProgramTable


class Moses(Adaptation):
    """Fine-tune the transferable share of the weights, let others decay.

    arXiv 2201.05752. Every round from the source weights. With the gradient g of the target loss
    there, a parameter's transferability is ``xi_i = |theta_i g_i|``; the `transferable` share with
    the largest xi (over the whole network) is trained, every other parameter shrinks: ``theta_i <-
    (1 - decay) theta_i`` a step. Differs: no adversarial domain loss and no measurement scheduling;
    the share and the decay are ours, since the paper's values were not available.
    """

    name = "moses"

    def __init__(
        self,
        setting: Setting,
        *,
        transferable: float = 0.5,
        decay: float = 1e-3,
        fit: OnlineFit | None = None,
    ) -> None:
        if not 0.0 < transferable <= 1.0 or not 0.0 <= decay < 1.0:
            raise ValueError(
                f"moses: got transferable={transferable}, decay={decay}; need (0, 1] and [0, 1)"
            )
        super().__init__(setting, fit=fit)
        self.transferable = transferable
        self.decay = decay

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        self.restart()
        network = self.ranker.network
        keep = transferable_masks(network, self._gradients(store, index), self.transferable)
        specific = {name: value.detach().clone() for name, value in network.named_parameters()}

        @torch.no_grad()
        def decay_the_rest() -> None:
            for name, value in network.named_parameters():
                specific[name].mul_(1.0 - self.decay)
                # Overwritten after each step, since Adam moves the masked parameters, too.
                value.copy_(torch.where(keep[name], value, specific[name]))

        self.run_fit(store, index, after_step=decay_the_rest)

    def _gradients(self, store: ProgramTable, index: Tensor) -> dict[str, Tensor]:
        # In evaluation mode, so that batch norm keeps the source's statistics.
        network = self.ranker.network.eval()
        network.zero_grad()
        example = Example.of(store, self.ranker, index)
        for loss in self.fit.losses(network, example, self.stream()):
            loss.backward()
        return {
            name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
            for name, value in network.named_parameters()
        }


def transferable_masks(
    network: nn.Module, gradients: dict[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Mask by name the `share` of all parameters with the largest ``|theta g|``."""
    xi = {name: (value * gradients[name]).abs() for name, value in network.named_parameters()}
    ranked = torch.cat([value.detach().flatten() for value in xi.values()])
    count = max(1, round(share * len(ranked)))
    # One threshold for the whole network: layers may be transferable as a whole, or not at all.
    threshold = ranked.kthvalue(len(ranked) - count + 1).values
    return {name: value >= threshold for name, value in xi.items()}
