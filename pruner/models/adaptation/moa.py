"""Momentum online adaptation (MoA), Pruner's own method."""

from copy import deepcopy
from typing import Literal

import torch
from torch import nn

from pruner.models.adaptation.base import Adaptation, Setting, copied
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.checkpoint.checkpoint import SIAMESE
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker

Normalisation = Literal["source", "online"]


class MomentumAdaptation(Adaptation):
    """Start every fit from a Siamese copy, which slowly follows the results.

    Pruner (ASPLOS'25, section on MoA; ``siamese_update`` of the release): ``theta_t =
    fit(theta_s)``, then ``theta_s <- m theta_s + (1 - m) theta_t`` with m = 0.99. The Siamese side
    is never trained itself.

    `period`: every update (1, as the paper reads) or every fourth (the release: updates number 4,
    8, ..., the last fit scores in between, the source before the first). `normalisation`: the
    source's vectors, or "online", recomputed from the target programs at every fit while the
    weights come from the source's inputs (the release). `average_buffers`: BatchNorm's running
    statistics follow the same average; the release leaves the Siamese ones untouched.
    """

    name = "moa"
    further = "siamese"

    def __init__(
        self,
        setting: Setting,
        *,
        momentum: float = 0.99,
        period: int = 1,
        normalisation: Normalisation = "source",
        average_buffers: bool = False,
        fit: OnlineFit | None = None,
    ) -> None:
        if not 0.0 <= momentum <= 1.0 or period < 1:
            raise ValueError(f"moa: got momentum={momentum}, period={period}; need [0, 1], >= 1")
        if normalisation not in ("source", "online"):
            raise ValueError(f"moa.normalisation: got {normalisation!r}; known: 'source', 'online'")
        super().__init__(setting, fit=fit)
        self.momentum = momentum
        self.period = period
        self.normalisation = normalisation
        self.average_buffers = average_buffers
        self.siamese = copied(self.source.network.state_dict())

    def _update(self, store: ProgramTable) -> None:
        # The release counts updates from 1, over all tasks together.
        if (self.round + 1) % self.period == 0:
            super()._update(store)

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        if self.normalisation == "online":
            self.refit_scaler(store, index)
        # Not from the last fit: a fit on few biased programs damages the weights, and the next one
        # starts without that damage.
        self.ranker.network.load_state_dict(self.siamese)
        self.run_fit(store, index)
        follow(
            self.siamese, self.ranker.network, self.momentum, average_buffers=self.average_buffers
        )

    @property
    def models(self) -> dict[str, NeuralRanker]:
        """The adapted model, and the Siamese model for the next platform.

        That has the source's normalisation: after k fits at least ``momentum ** k`` of it is the
        source's.
        """
        siamese = deepcopy(self.source)
        siamese.network.load_state_dict(self.siamese)
        return {**super().models, SIAMESE: siamese.eval()}


@torch.no_grad()
def follow(
    siamese: dict[str, torch.Tensor], target: nn.Module, momentum: float, *, average_buffers: bool
) -> None:
    """Average parameters (and buffers) in place: ``s <- m s + (1-m) t``."""
    averaged: dict[str, torch.Tensor] = dict(target.named_parameters())
    if average_buffers:
        averaged |= {n: b for n, b in target.named_buffers() if b.is_floating_point()}
    for name, value in averaged.items():
        siamese[name].mul_(momentum).add_(value, alpha=1.0 - momentum)
