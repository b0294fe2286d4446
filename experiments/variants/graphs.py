"""Small networks with a part that can be computed in another way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]
Shape = tuple[int, ...]


class _Products(nn.Module):
    """A function of inputs and of weights."""

    def __init__(self, function: Callable[..., Any], shapes: tuple[Shape, ...]) -> None:
        super().__init__()
        scaled = (nn.Parameter(torch.randn(shape) / shape[0] ** 0.5) for shape in shapes)
        self.function, self.weights = function, nn.ParameterList(scaled)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Compute."""
        return self.function(*inputs, *self.weights)


def _products(
    function: Callable[..., Any], *shapes: Shape, weights: tuple[Shape, ...] = ()
) -> Example:
    return _evaluated(_Products(function, weights), *shapes)


def _evaluated(network: nn.Module, *shapes: Shape) -> Example:
    return network.eval(), tuple(torch.randn(shape) for shape in shapes)


def chain() -> Example:
    """(A B) C: 1024 x 16 by 16 x 1024 by 1024 x 1024."""
    return _products(lambda a, b, c: a @ b @ c, (1024, 16), (16, 1024), (1024, 1024))


def low_rank() -> Example:
    """A matrix and one of low rank, as adapters have: 256 rows, 1024 x 1024, rank 16."""
    weights = (1024, 1024), (1024, 16), (16, 1024)
    return _products(lambda x, a, b, c: x @ a + x @ b @ c, (256, 1024), weights=weights)


def projections() -> Example:
    """Queries, keys and values: 32 rows, 512 inputs, three products to 512."""

    def projected(x: torch.Tensor, *weights: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(x @ one) for one in weights]

    return _products(projected, (32, 512), weights=((512, 512),) * 3)


def long_sum() -> Example:
    """A small product of long sums: 16 x 65536 by 65536 x 16."""
    return _products(lambda a, b: a @ b, (16, 65536), (65536, 16))


def linear_attention() -> Example:
    """(Q K^T) V without a softmax: eight heads, 1024 places, 64 channels."""
    return _products(lambda q, k, v: q @ k.transpose(1, 2) @ v, *((8, 1024, 64),) * 3)


def convolution() -> Example:
    """3x3, 64 channels, 56 x 56, as in the first layers of resnet18."""
    layer = nn.Conv2d(64, 64, 3, padding=1)
    return _evaluated(nn.Sequential(layer, nn.ReLU()), (1, 64, 56, 56))


def deep_convolution() -> Example:
    """3x3, 256 channels, 14 x 14."""
    layer = nn.Conv2d(256, 256, 3, padding=1)
    return _evaluated(nn.Sequential(layer, nn.ReLU()), (1, 256, 14, 14))
