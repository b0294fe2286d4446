"""Elastic weight consolidation: hold back the weights that the source needs."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.adaptation.base import Adaptation, Setting, copied
from pruner.models.adaptation.fitting import Example, OnlineFit
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.program_table import ProgramTable


class ElasticWeights(Adaptation):
    """Fine-tune from the source weights with a spring on each weight.

    Kirkpatrick et al. 2017, eq. 3. ``L = L_target + strength / 2 sum_i F_i (theta_i - theta*_i)^2``
    with theta* the source weights and F the diagonal Fisher information of the source loss,
    measured once on batches from a sample of `num_source` source programs: ``F_i = mean over
    batches of (dL_source / dtheta_i)^2``.

    TCL (arXiv 2604.12891) uses it against forgetting. Differs: gradients are those of whole
    batches, since a ranking loss has none of a single program, and F is divided by its mean so that
    `strength` does not depend on the size of the loss.
    """

    name = "ewc"

    def __init__(
        self,
        setting: Setting,
        *,
        strength: float = 1.0,
        num_source: int = 4096,
        fit: OnlineFit | None = None,
    ) -> None:
        super().__init__(setting, fit=fit)
        self.strength = strength
        self.anchor = copied(dict(self.source.network.named_parameters()))
        example = self.source_example(num_source)
        self.fisher = fisher_diagonal(self.ranker.network, example, self.fit, setting.seed)

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        # Each round starts at the anchor: there the penalty is 0, whatever the last round did.
        self.restart()

        def spring(_: LabelledBatch, __: Float[Tensor, " program"]) -> Float[Tensor, ""]:
            return elastic_penalty(self.ranker.network, self.anchor, self.fisher, self.strength)

        self.run_fit(store, index, penalty=spring)


def fisher_diagonal(
    network: nn.Module, example: Example, fit: OnlineFit, seed: int
) -> dict[str, Tensor]:
    """Mean squared gradients of one epoch's batches by parameter, divided by their mean."""
    total = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    num_batches = fit.batches.num_batches(example.store.task[example.index])
    for loss in fit.losses(network, example, seed):
        network.zero_grad()
        loss.backward()
        for name, value in network.named_parameters():
            if value.grad is not None:
                # The square of a batch's gradient, not the mean of squares over programs: see the
                # class.
                total[name] += value.grad.square() / num_batches
    network.zero_grad()
    # One mean over all parameters: their relation is the information, the common factor is the
    # loss's.
    mean = torch.cat([value.flatten() for value in total.values()]).mean().clamp(min=1e-30)
    return {name: value / mean for name, value in total.items()}


def elastic_penalty(
    network: nn.Module,
    anchor: Mapping[str, Tensor],
    fisher: Mapping[str, Tensor],
    strength: float,
) -> Float[Tensor, ""]:
    """``strength / 2 sum_i F_i (theta_i - theta*_i)^2``."""
    squares = [
        (fisher[name] * (value - anchor[name]).square()).sum()
        for name, value in network.named_parameters()
    ]
    return 0.5 * strength * torch.stack(squares).sum()
