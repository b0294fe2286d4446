"""Convolutions of signals as images of one row, transposed ones as plain ones: same results."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.rewrites.convolutions import one_row, phase_weights
from pruner.tune.networks.source import NetworkSource, import_network
from tests.tune.networks.lowered import imported, torch_error
from tests.tune.networks.operators.against_torch import assert_equal
from tests.tune.targets import target_of


class Block(nn.Module):
    """Dilated, by groups, with a norm and a shortcut."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.norm, self.mix = nn.BatchNorm1d(16), nn.Conv1d(16, 16, 1)

    def forward(self, x):
        return x + self.mix(functional.leaky_relu(self.norm(self.wide(x)), 0.2))


def signals():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(4, 16, 7, stride=2, padding=3),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.MaxPool1d(2),
        Block(),
        nn.AvgPool1d(3, 1, 1),
        nn.ConvTranspose1d(16, 8, 4, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(8 * 32, 5),
    )
    nn.init.normal_(network[4].norm.running_mean)
    nn.init.uniform_(network[4].norm.running_var, 0.5, 2.0)
    return network.eval(), (torch.randn(2, 4, 64),)


@pytest.mark.tvm
@pytest.mark.parametrize("layout", [pytest.param("NCHW", marks=pytest.mark.slow), "NHWC"])
def test_signals_are_convolved_as_images(layout):
    source = NetworkSource(name=f"{__name__}:signals")
    target = target_of(1)
    lowered = lower(import_network(source), target, NetworkFormat(layout=layout))
    assert torch_error(source, lowered) < 1e-5
    tasks = network_tasks(lowered, target)
    names = {task.name[:-9] for task in tasks}
    assert not [name for name in names if "conv1d" in name or "batch_norm" in name]
    # no view ends a function between a convolution and what follows it
    assert "conv2d_add_add" in names
    if layout == "NHWC":
        shapes = [shape for task in tasks for shape, _ in task.shapes]
        assert (1, 1, 7, 4, 16) in shapes  # the first one's weights, packed


class Views(nn.Module):
    """Views that keep the shape of a signal, or add a dimension."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.mix(x)
        return y.expand(1, 4, 8) + y.expand_as(x), y.reshape(1, 4, 8).relu(), y.expand(2, 1, 4, 8)


@pytest.mark.tvm
def test_views_of_signals_and_networks_without_signals(tvm):
    assert_equal(Views(), torch.randn(1, 4, 8))
    assert one_row(imported("residual")) is imported("residual")


def test_phases_of_a_kernel_by_hand():
    """Stride 2, taps 1 2 3 (and a zero): even outputs see 3 then 1, odd ones 0 then 2."""
    weights = np.arange(1.0, 4.0).reshape(1, 1, 1, 3)
    found = phase_weights(weights, (1, 2), channels_last=False)
    assert found.reshape(2, 2).tolist() == [[3, 1], [0, 2]]
    last = phase_weights(weights, (1, 2), channels_last=True)
    assert last.reshape(2, 2).tolist() == [[3, 0], [1, 2]]


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (3, 2), (2, 3), (3, 1)])
def test_a_plain_convolution_and_a_shuffle_are_the_transposed_one(size, stride):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 2, size, size))
    images = torch.tensor(rng.normal(size=(1, 3, 5, 6)))
    wanted = functional.conv_transpose2d(images, torch.tensor(weights), stride=stride)
    phases = phase_weights(weights, (stride, stride), channels_last=False)
    pad = phases.shape[2] - 1
    plain = functional.conv2d(images, torch.tensor(phases), padding=pad)
    shuffled = functional.pixel_shuffle(plain, stride)
    assert torch.allclose(shuffled[:, :, : wanted.shape[2], : wanted.shape[3]], wanted)
