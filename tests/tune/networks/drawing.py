"""A factory whose module draws numbers when it is imported, as scripts do."""

import random

import numpy as np
import torch
from torch import nn

EXAMPLE = torch.randn(1, 4)


def make():
    """Layers and weights that Python, numpy and torch draw."""
    layers = [nn.Linear(2, 2) for _ in range(random.randint(1, 9))]
    first = nn.Linear(4, 2)
    first.weight.data = torch.from_numpy(np.random.rand(2, 4)).float()  # noqa: NPY002
    return nn.Sequential(first, *layers), EXAMPLE
