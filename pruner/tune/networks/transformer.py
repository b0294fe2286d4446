"""Transformers in plain torch, for text, for patches of images, and behind convolutions.

Attention is written as matmul, softmax, matmul, so that it becomes three tasks that can be
scheduled and not one call of a library. Sequence lengths are fixed: positions, masks and rotations
are constants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pruner.tune.networks.convolutional import initialised, resnet_features

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSizes:
    """A stack of layers; ``key_value_heads`` below ``heads`` share keys and values."""

    layers: int
    heads: int
    width: int
    inner: int
    key_value_heads: int | None = None

    @property
    def head_width(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


class RmsNorm(nn.Module):
    """Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., width] over the last dimension."""
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """Multi-head attention of `x` over itself."""

    def __init__(self, sizes: StackSizes, *, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.head_width = sizes.heads, sizes.head_width
        self.shared = sizes.key_value_heads or sizes.heads
        self.query = nn.Linear(sizes.width, sizes.width, bias=bias)
        self.key = nn.Linear(sizes.width, self.shared * self.head_width, bias=bias)
        self.value = nn.Linear(sizes.width, self.shared * self.head_width, bias=bias)
        self.out = nn.Linear(sizes.width, sizes.width, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        rotate: Activation | None = None,
    ) -> Tensor:
        """Map [n, length, width] to the same shape.

        ``mask`` [length, length] is added to the scores.
        """
        query = self._split(self.query(x), self.heads)
        key = self._split(self.key(x), self.shared)
        value = self._split(self.value(x), self.shared)
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        if self.shared != self.heads:
            key, value = self._repeated(key), self._repeated(value)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.head_width)
        if mask is not None:
            scores = scores + mask
        mixed = torch.softmax(scores, -1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """Split heads: [n, length, heads w] to [n, heads, length, w]."""
        return x.unflatten(-1, (heads, self.head_width)).transpose(1, 2)

    def _repeated(self, x: Tensor) -> Tensor:
        """Repeat shared heads: [n, shared, length, w] to [n, heads, length, w]."""
        n, shared, length, width = x.shape
        times = self.heads // shared
        copies = x[:, :, None].expand(n, shared, times, length, width)
        return copies.reshape(n, self.heads, length, width)


def feed_forward(sizes: StackSizes, activation: nn.Module) -> nn.Module:
    """Make two linear layers with an activation in between."""
    up, down = nn.Linear(sizes.width, sizes.inner), nn.Linear(sizes.inner, sizes.width)
    return nn.Sequential(up, activation, down)


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020): a linear layer gates another."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and a feed-forward part, each with a shortcut.

    ``norm_first``: normalised before each part (GPT-2, ViT, Llama) and not after it (BERT, DETR).
    """

    def __init__(
        self,
        sizes: StackSizes,
        feed_forward: nn.Module,
        norm: Callable[[int], nn.Module],
        *,
        norm_first: bool,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(sizes, bias=bias), feed_forward
        self.norms = nn.ModuleList([norm(sizes.width), norm(sizes.width)])
        self.norm_first = norm_first

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, rotate: Activation | None = None
    ) -> Tensor:
        """Map [n, length, width] to the same shape."""
        first, second = self.norms
        if self.norm_first:
            x = x + self.attention(first(x), mask=mask, rotate=rotate)
            return x + self.feed_forward(second(x))
        x = first(x + self.attention(x, mask=mask, rotate=rotate))
        return second(x + self.feed_forward(x))


class Bert(nn.Module):
    """BERT (Devlin et al., 2019): token ids to states and pooled token."""

    def __init__(self, sizes: StackSizes, length: int, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Parameter(torch.randn(512, sizes.width) * 0.02)
        self.kinds = nn.Parameter(torch.randn(2, sizes.width) * 0.02)
        self.norm = nn.LayerNorm(sizes.width)
        self.layers = _layers(sizes, nn.GELU(), norm_first=False)
        self.pool = nn.Linear(sizes.width, sizes.width)
        self.length = length

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute states [n, length, width] and the pooled token [n, width].

        Token ids are [n, length].
        """
        x = self.norm(self.words(tokens) + self.positions[: self.length] + self.kinds[0])
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pool(x[:, 0]))


class Decoder(nn.Module):
    """A language model with learned positions (GPT-2, OPT)."""

    def __init__(
        self,
        sizes: StackSizes,
        length: int,
        *,
        vocabulary: int,
        positions: int,
        activation: nn.Module,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Parameter(torch.randn(positions, sizes.width) * 0.02)
        self.layers = _layers(sizes, activation, norm_first=True)
        self.norm = nn.LayerNorm(sizes.width)
        self.register_buffer("mask", causal_mask(length), persistent=False)
        self.length = length

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute logits [n, length, vocabulary] of token ids [n, length].

        The word embedding is also the output layer.
        """
        x = self.words(tokens) + self.positions[: self.length]
        for layer in self.layers:
            x = layer(x, mask=self.mask)
        return self.norm(x) @ self.words.weight.T


class Llama(nn.Module):
    """Llama and Mistral (Touvron et al., Jiang et al., 2023)."""

    def __init__(self, sizes: StackSizes, length: int, vocabulary: int = 32000) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, sizes.width)
        self.layers = nn.ModuleList(
            Layer(
                sizes,
                GatedFeedForward(sizes.width, sizes.inner),
                RmsNorm,
                norm_first=True,
                bias=False,
            )
            for _ in range(sizes.layers)
        )
        self.norm = RmsNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)
        cosine, sine = rotation(length, sizes.head_width)
        self.register_buffer("mask", causal_mask(length), persistent=False)
        self.register_buffer("turn", torch.stack([cosine, sine]), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute logits [n, length, vocabulary] of token ids [n, length]."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, mask=self.mask, rotate=self._rotate)
        return self.head(self.norm(x))

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate pairs of columns half a head apart (Su et al., 2021)."""
        first, second = x.chunk(2, -1)
        cosine, sine = self.get_buffer("turn")
        return x * cosine + torch.cat([-second, first], -1) * sine


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al., 2021) for images [n, 3, size, size]."""

    def __init__(self, sizes: StackSizes, size: int, patch: int, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(torch.randn((size // patch) ** 2 + 1, sizes.width) * 0.02)
        self.layers = _layers(sizes, nn.GELU(), norm_first=True)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes], from the state of the class token."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(x.shape[0], 1, x.shape[2])
        x = torch.cat([token, x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def causal_mask(length: int) -> Tensor:
    """Make a mask [length, length]: 0 before, very negative after.

    A position must not attend to later positions.
    """
    return torch.full((length, length), -1e9).triu(1)


def rotation(length: int, width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines [length, width] of rotary positions."""
    frequencies = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _layers(sizes: StackSizes, activation: nn.Module, *, norm_first: bool) -> nn.ModuleList:
    parts = (feed_forward(sizes, activation) for _ in range(sizes.layers))
    return nn.ModuleList(Layer(sizes, part, nn.LayerNorm, norm_first=norm_first) for part in parts)


_DETR = StackSizes(layers=6, heads=8, width=256, inner=2048)  # of DETR


class PositionedAttention(Attention):
    """Attention with positions in queries and keys, not in values."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        """Attend from [n, queries, width] to [n, keys, width]."""
        q = self._split(self.query(query), self.heads)
        k = self._split(self.key(key), self.heads)
        v = self._split(self.value(value), self.heads)
        scores = q @ k.transpose(-1, -2) * self.head_width**-0.5
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class DetrLayer(nn.Module):
    """Self-attention, attention over an image if it crosses, feed-forward."""

    def __init__(self, sizes: StackSizes, *, crosses: bool) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(PositionedAttention(sizes) for _ in range(1 + crosses))
        self.feed_forward = feed_forward(sizes, nn.ReLU())
        self.norms = nn.ModuleList([nn.LayerNorm(sizes.width) for _ in range(2 + crosses)])

    def forward(self, x: Tensor, positions: Tensor, *image: Tensor) -> Tensor:
        """Map [n, length, width] to the same shape; `image`: its pixels, and their positions."""
        x = self.norms[0](x + self.attentions[0](x + positions, x + positions, x))
        if image:
            pixels, places = image
            x = self.norms[1](x + self.attentions[1](x + positions, pixels + places, pixels))
        return self.norms[-1](x + self.feed_forward(x))


class Detr(nn.Module):
    """DETR (Carion et al., 2020): images to class logits and boxes.

    The position embedding of an image of fixed size is a constant.
    """

    def __init__(self, size: int, classes: int = 91, queries: int = 100) -> None:
        super().__init__()
        features, channels = resnet_features((3, 4, 6, 3))
        self.features = initialised(features)
        self.narrow = nn.Conv2d(channels, _DETR.width, 1)
        self.encoder = nn.ModuleList(DetrLayer(_DETR, crosses=False) for _ in range(_DETR.layers))
        self.decoder = nn.ModuleList(DetrLayer(_DETR, crosses=True) for _ in range(_DETR.layers))
        self.norm = nn.LayerNorm(_DETR.width)
        self.queries = nn.Parameter(torch.randn(queries, _DETR.width))
        self.logits = nn.Linear(_DETR.width, classes + 1)
        width = _DETR.width
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
