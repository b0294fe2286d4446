"""Generators of candidates for the tests."""

import random

import numpy as np
import torch
from torch import nn

from tests.tune.networks import small_networks


def two():
    """Two networks that share a layer: made when they are needed, and at once."""
    yield "first", small_networks.faint
    network, inputs = small_networks.faint()
    yield "second", nn.Sequential(network, nn.Linear(8, 3)), inputs


def wrong():
    yield 7


def failing():
    """An error of the user's code, behind a network."""
    yield "first", small_networks.faint
    raise RuntimeError("no more layers")


def one_is_refused():
    """The second of three cannot be exported."""
    yield "first", small_networks.faint
    yield "branches", small_networks.Branches(), (torch.ones(2),)
    yield "third", small_networks.faint


def refuse():
    raise ValueError("no such choice\nin this space")


def two_are_refused():
    """Before those of above one is not made."""
    yield "refused", refuse
    yield from one_is_refused()


def drawn():
    """Names with random numbers of three libraries; the networks seed torch in between."""
    while True:
        numbers = random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002
        yield str(numbers), small_networks.faint


def candidates():
    """The generator of a space for `experiments.filter`."""
    yield "faint", small_networks.faint
    yield "layer", layer


def layer():
    return nn.Linear(16, 32).eval(), (torch.ones(4, 16),)


number_0, number_1 = small_networks.faint, layer
