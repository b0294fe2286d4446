"""Collectives of a distributed fit.

Each has the features of its share of a batch. Sums over all of them, with their gradients, make the
loss and the norms those of the whole batch, so that several processes compute what one would.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.nn import functional


def processes() -> int:
    """How many there are; 1 where nothing was distributed."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, the same to the last bit in each.

    Its gradient is the sum of their gradients: where every process takes the same loss of it, their
    mean (which torch's DDP takes) is the gradient of one process that has everything.
    """
    total: Tensor = _Sum.apply(values)
    return total


def joined(values: Float[Tensor, " share"], first: int, total: int) -> Float[Tensor, " program"]:
    """The values of a whole batch of `total` programs; those here begin with number `first`."""
    if processes() == 1:
        return values
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
