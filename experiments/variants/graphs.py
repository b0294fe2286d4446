"""Small networks with a part that can be computed in another way."""

import torch
from torch import nn

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Products(nn.Module):
    """Products of an input by weights."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        scaled = (nn.Parameter(torch.randn(shape) / shape[0] ** 0.5) for shape in shapes)
        self.weights = nn.ParameterList(scaled)


class _Chain(nn.Module):
    """(A B) C of three inputs."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Multiply from left to right."""
        return a @ b @ c


class _LowRank(_Products):
    """A product by a matrix and by a matrix of low rank, as adapters have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both products."""
        whole, down, up = self.weights
        return x @ whole + x @ down @ up


class _Projections(_Products):
    """Queries, keys and values of one input."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Multiply by each of the weights."""
        return [torch.relu(x @ weights) for weights in self.weights]


class _LongSum(nn.Module):
    """A small product of long sums."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return a @ b


class _LinearAttention(nn.Module):
    """Attention without a softmax: (Q K^T) V."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Multiply from left to right."""
        return q @ k.transpose(1, 2) @ v


def _evaluated(network: nn.Module, *shapes: tuple[int, ...]) -> Example:
    return network.eval(), tuple(torch.randn(shape) for shape in shapes)


def chain() -> Example:
    """1024 x 16 by 16 x 1024 by 1024 x 1024."""
    return _evaluated(_Chain(), (1024, 16), (16, 1024), (1024, 1024))


def low_rank() -> Example:
    """256 rows, 1024 x 1024, rank 16."""
    return _evaluated(_LowRank((1024, 1024), (1024, 16), (16, 1024)), (256, 1024))


def projections() -> Example:
    """32 rows, 512 inputs, three products to 512."""
    return _evaluated(_Projections(*((512, 512),) * 3), (32, 512))


def long_sum() -> Example:
    """16 x 65536 by 65536 x 16."""
    return _evaluated(_LongSum(), (16, 65536), (65536, 16))


def linear_attention() -> Example:
    """Eight heads, 1024 places, 64 channels."""
    return _evaluated(_LinearAttention(), *((8, 1024, 64),) * 3)


def convolution() -> Example:
    """3x3, 64 channels, 56 x 56, as in the first layers of resnet18."""
    layer = nn.Conv2d(64, 64, 3, padding=1)
    return _evaluated(nn.Sequential(layer, nn.ReLU()), (1, 64, 56, 56))


def deep_convolution() -> Example:
    """3x3, 256 channels, 14 x 14."""
    layer = nn.Conv2d(256, 256, 3, padding=1)
    return _evaluated(nn.Sequential(layer, nn.ReLU()), (1, 256, 14, 14))
