"""Multi-task learning: target and source programs, a head for each platform."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from pruner.errors import PrunerError
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.program_table import ProgramTable

HEAD = "head"  # parameters whose names begin so are a platform's own; the rest is the shared trunk


class MultiTask(Adaptation):
    """Train a shared trunk with a head for each platform (MTL-TLP, ASPLOS'23).

    Both losses are added: ``L = L_target(head_t(trunk(x_t))) + source_weight
    L_source(head_s(trunk(x_s)))``. Every step takes a batch of target programs and a batch of
    source programs, from a sample of `num_source` programs. Both heads start as the source's.
    Differs: MTL-TLP trains both from random weights once; here every round continues from the last.
    """

    name = "multi_task"
    further = "source_head"

    def __init__(
        self,
        setting: Setting,
        *,
        source_weight: float = 1.0,
        num_source: int = 4096,
        fit: OnlineFit | None = None,
    ) -> None:
        super().__init__(setting, fit=fit)
        self.source_weight = source_weight
        self._example = self.source_example(num_source)
        network = self.ranker.network
        self.source_head: dict[str, Tensor] = {
            name: nn.Parameter(value.detach().clone())
            for name, value in network.named_parameters()
            if name.startswith(HEAD)
        }
        if not self.source_head:
            name = type(network).__name__
            raise PrunerError(f"method=multi_task: {name} has no layer named {HEAD!r}")

    def _learn(self, store: ProgramTable, index: torch.Tensor) -> None:
        # Another stream than the target's batches, or both would be shuffled alike.
        batches = self._example.batches(self.fit.batches, self.stream() + 1)
        network = self.ranker.network

        def source_loss(_: LabelledBatch, __: Float[Tensor, " program"]) -> Float[Tensor, ""]:
            batch = next(batches)
            # The network with its head replaced: the trunk gets the gradients of both losses.
            # Copies of the buffers: the running averages of norms are of the target alone.
            buffers = {name: value.clone() for name, value in network.named_buffers()}
            score = functional_call(network, {**buffers, **self.source_head}, (batch.programs,))
            loss: Tensor = self.fit.loss(score, batch.label, batch.task)
            return self.source_weight * loss

        trained = list(self.source_head.values())
        self.run_fit(store, index, penalty=source_loss, also_trained=trained)
