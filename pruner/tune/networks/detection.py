"""DETR (Carion et al., 2020) in plain torch: residual network, then transformer.

The position embedding of an image of fixed size is a constant.
"""

import torch
from torch import Tensor, nn

from pruner.tune.networks.convolutional import initialised, resnet_features
from pruner.tune.networks.transformer import Attention, FeedForward, StackSizes

SIZES = StackSizes(layers=6, heads=8, width=256, inner=2048)


class EncoderLayer(nn.Module):
    """Self-attention with positions in queries and keys, then feed-forward."""

    def __init__(self, sizes: StackSizes) -> None:
        super().__init__()
        self.attention = PositionedAttention(sizes)
        self.feed_forward = FeedForward(sizes.width, sizes.inner, torch.relu)
        self.norms = nn.ModuleList([nn.LayerNorm(sizes.width) for _ in range(2)])

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Map [n, pixels, width] to the same shape."""
        first, second = self.norms
        x = first(x + self.attention(x + positions, x + positions, x))
        return second(x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Self-attention of the queries, attention over the image, feed-forward."""

    def __init__(self, sizes: StackSizes) -> None:
        super().__init__()
        self.own = PositionedAttention(sizes)
        self.cross = PositionedAttention(sizes)
        self.feed_forward = FeedForward(sizes.width, sizes.inner, torch.relu)
        self.norms = nn.ModuleList([nn.LayerNorm(sizes.width) for _ in range(3)])

    def forward(self, x: Tensor, queries: Tensor, image: Tensor, positions: Tensor) -> Tensor:
        """Map [n, queries, width] to the same shape."""
        first, second, third = self.norms
        x = first(x + self.own(x + queries, x + queries, x))
        x = second(x + self.cross(x + queries, image + positions, image))
        return third(x + self.feed_forward(x))


class PositionedAttention(Attention):
    """Attention with positions in queries and keys, not in values."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        """Attend from [n, queries, width] to [n, keys, width]."""
        q = self._split(self.query(query), self.heads)
        k = self._split(self.key(key), self.heads)
        v = self._split(self.value(value), self.heads)
        scores = q @ k.transpose(-1, -2) * self.head_width**-0.5
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Detr(nn.Module):
    """DETR: images [n, 3, size, size] to class logits and boxes."""

    def __init__(self, size: int, classes: int = 91, queries: int = 100) -> None:
        super().__init__()
        features, channels = resnet_features((3, 4, 6, 3))
        self.features = initialised(features)
        self.narrow = nn.Conv2d(channels, SIZES.width, 1)
        self.encoder = nn.ModuleList(EncoderLayer(SIZES) for _ in range(SIZES.layers))
        self.decoder = nn.ModuleList(DecoderLayer(SIZES) for _ in range(SIZES.layers))
        self.norm = nn.LayerNorm(SIZES.width)
        self.queries = nn.Parameter(torch.randn(queries, SIZES.width))
        self.logits = nn.Linear(SIZES.width, classes + 1)
        width = SIZES.width
        self.boxes = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 4), nn.Sigmoid(),
        )  # fmt: skip
        # the residual network halves the image five times
        positions = sine_positions(-(-size // 32), width)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits [n, queries, classes + 1] and boxes [n, queries, 4].

        A box is its centre and size, in 0..1.
        """
        image = self.narrow(self.features(images)).flatten(2).transpose(1, 2)
        for encoder in self.encoder:
            image = encoder(image, self.positions)
        # the decoder's state starts at zero; the queries act as its positions
        x = torch.zeros_like(self.queries).expand(image.shape[0], -1, -1)
        for decoder in self.decoder:
            x = decoder(x, self.queries, image, self.positions)
        x = self.norm(x)
        return self.logits(x), self.boxes(x)


def sine_positions(side: int, width: int, temperature: float = 10000.0) -> Tensor:
    """Compute positions [side side, width] of an image: sines and cosines.

    The first half of the columns is of the row, the second half of the column.
    """
    where = torch.arange(1, side + 1) / side * 2 * torch.pi
    pair = 2 * (torch.arange(width // 2) // 2)
    angles = where[:, None] / temperature ** (pair / (width // 2))
    waves = torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], -1).flatten(1)
    rows = waves[:, None].expand(side, side, width // 2)
    columns = waves[None].expand(side, side, width // 2)
    return torch.cat([rows, columns], -1).flatten(0, 1)
