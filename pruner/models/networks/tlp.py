"""TLP and MTL-TLP (ASPLOS'23): score the sequence of schedule primitives.

Sizes of the release (scripts/tlp_train.py): 22 -> 64 -> 128 -> 256 -> 256 for every step, one
self-attention of 8 heads with residual, two residual layers, 256 -> 256 -> 128 -> 64 -> 1 for every
step, summed over steps. MTL-TLP has such a head for each platform; a program trains the head of the
platform it was measured on, which is the release's masked sum of losses.

Differs: padding neither takes part in the attention nor in the sum, so a score does not depend on
the longest program of the batch.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.errors import DataError
from pruner.features.primitives import NUM_COLUMNS
from pruner.models.model import RankingNetwork
from pruner.models.networks.layers import (
    MaskedSelfAttention,
    ResidualLayer,
    dense_layers,
    processes,
)
from pruner.models.programs.batch import ProgramBatch

ENCODER = (64, 128, 256, 256)
HEAD = (256, 128, 64, 1)


class TLP(RankingNetwork):
    """Rank programs from their schedule primitives; higher is better.

    `platforms` names the platforms with a head of their own (MTL-TLP); without names all platforms
    share one head. Raises DataError for programs without primitives, or of a platform without a
    head.
    """

    reads_primitives = True

    def __init__(self, *, platforms: Sequence[str] = (), num_heads: int = 8) -> None:
        super().__init__()
        self.platforms = tuple(platforms)
        self.encoder = dense_layers(NUM_COLUMNS, *ENCODER)
        self.attention = MaskedSelfAttention(ENCODER[-1], num_heads)
        self.residual = nn.Sequential(ResidualLayer(ENCODER[-1]), ResidualLayer(ENCODER[-1]))
        self.heads = nn.ModuleList(
            dense_layers(ENCODER[-1], *HEAD, last_relu=False) for _ in self.platforms or ("",)
        )

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Score programs by the head of their platform."""
        if batch.tokens is None:
            raise DataError(
                "TLP reads schedule primitives, and these programs have none; "
                "score programs that were featurised from steps or decisions"
            )
        tokens, real = batch.tokens.dense()
        hidden = self.residual(self.attention(self.encoder(tokens), real))
        if not self.platforms:
            return _step_sum(self.heads[0], hidden, real)
        wanted = self._heads_of(batch)
        score = hidden.new_zeros(len(hidden))
        for number, head in enumerate(self.heads):
            mine = torch.nonzero(wanted == number).squeeze(1)
            # Several processes wait for the gradient of every head, perhaps zero here.
            if len(mine) or processes() > 1:
                part = _step_sum(head, hidden[mine], real[mine])
                score = score.index_copy(0, mine, part.to(score.dtype))
        return score

    def _heads_of(self, batch: ProgramBatch) -> Tensor:
        missing = sorted(set(batch.platforms) - set(self.platforms))
        if missing or batch.platform is None:
            raise DataError(
                f"MTL-TLP has heads for {', '.join(self.platforms)}; got programs of "
                f"{', '.join(missing) or 'no platform'}; name all in model.platforms"
            )
        numbers = [self.platforms.index(name) for name in batch.platforms]
        return torch.tensor(numbers, device=batch.platform.device)[batch.platform]


def _step_sum(head: nn.Module, hidden: Tensor, real: Tensor) -> Float[Tensor, " program"]:
    # Masked: the head's bias would otherwise count once for every step of padding.
    return (head(hidden).squeeze(2) * real).sum(dim=1)
