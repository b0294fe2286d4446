"""Collectives for distributed fits, in which every process has its share of a batch.

Sums over all processes, with their gradients, make loss and norms those of the whole batch.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.nn import functional


def processes() -> int:
    """Number of processes of the fit; 1 without distribution."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, identical to the last bit in each.

    Its gradient is the sum of their gradients: where every process computes the same loss from it,
    the mean of the gradients (which torch's DDP takes) is the gradient of a single process with all
    data.
    """
    total: Tensor = _Sum.apply(values)
    return total


def joined(values: Float[Tensor, " share"], first: int, total: int) -> Float[Tensor, " program"]:
    """The values [program] of the batch (`total` programs) from shares that begin at `first`."""
    if processes() == 1:
        return values
    # A sum of zero-padded shares instead of a gather: it has a gradient, and shares may differ in
    # size.
    return summed(functional.pad(values, (first, total - first - len(values))))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(gradient)
        return total
