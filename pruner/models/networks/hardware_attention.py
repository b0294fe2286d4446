"""Attention over statements and the device, after Verma et al. (arXiv 2304.05430).

Published: joint network and hardware features, an attention-inspired ranker, transfer to hardware
it has not seen, and a training set cut to 55 % at equal pairwise accuracy
(:func:`pruner.models.programs.assemble.spread`). No code is public, so layout and sizes are ours:
every statement row and the device become tokens of one width, attend to each other and are added.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.errors import DataError
from pruner.features.device_vector import known_platforms, platform_features
from pruner.models.model import RankingNetwork
from pruner.models.networks.layers import MaskedSelfAttention, residual_layers, statement_encoder
from pruner.models.programs.batch import NUM_STATEMENT_COLUMNS, ProgramBatch
from pruner.models.programs.scaler import rank_in_task


class HardwareEncoder(nn.Module):
    """Encode device constants: standard scores over ``conf/platform``, two layers.

    The vectors of the scores are buffers: a device described later does not change a trained model.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        known = torch.stack([_vector(name) for name in known_platforms()])
        self.register_buffer("center", known.mean(dim=0))
        # A constant that all devices share has no spread and must not divide by zero.
        self.register_buffer("scale", known.std(dim=0).clamp(min=1e-3))
        self.layers = statement_encoder(known.shape[1], width)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, "program width"]:
        """A vector for each program; raises DataError for a platform without a description."""
        if batch.platform is None or "" in batch.platforms:
            raise DataError("this model reads the device; name the platform of the programs")
        devices = torch.stack([_vector(name) for name in batch.platforms]).to(self.center.device)
        encoded: Tensor = self.layers((devices - self.center) / self.scale)
        # Encoded once a platform, then spread over its programs.
        return encoded[batch.platform]


class HardwareAttention(RankingNetwork):
    """Rank programs from statement features and device constants; higher is predicted faster."""

    def __init__(self, *, width: int = 128, num_heads: int = 4, num_residual: int = 2) -> None:
        super().__init__()
        self.statement_encoder = statement_encoder(NUM_STATEMENT_COLUMNS, width)
        self.hardware_encoder = HardwareEncoder(width)
        self.attention = MaskedSelfAttention(width, num_heads)
        self.residual = residual_layers(width, num_residual)
        self.head = nn.Linear(width, 1)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Score normalised features; the first token of a program is its device."""
        rows: Tensor = self.statement_encoder(batch.statement)
        place = rank_in_task(batch.program)
        longest = int(place.max()) + 2 if len(place) else 1
        tokens = rows.new_zeros(batch.num_programs, longest, rows.shape[1])
        # The device has place 0, so the statements begin at place 1.
        tokens[:, 0] = self.hardware_encoder(batch).to(rows.dtype)
        tokens[batch.program, place + 1] = rows
        real = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=rows.device)
        real[:, 0] = True
        real[batch.program, place + 1] = True
        attended = self.attention(tokens, real) * real[:, :, None]
        return self.head(self.residual(attended.sum(dim=1))).squeeze(1)


def _vector(platform: str) -> Float[Tensor, " column"]:
    return torch.from_numpy(platform_features(platform))
