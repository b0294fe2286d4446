"""Channels of a classifier filled up to whole vectors: which, and that the network is the same."""

import pytest
import torch
from torch import nn

from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.rewrites.packing import padded_size
from pruner.tune.networks.source import NetworkSource, import_network
from tests.tune.networks.lowered import torch_error
from tests.tune.targets import target_of


@pytest.mark.parametrize(
    ("outputs", "computed"),
    [(64, None), (48, None), (24, None), (21, None), (1000, 1024), (310, 320), (169, 176)],
)
def test_sizes_by_hand(outputs, computed):
    """Multiples of 32, else of 16, at most a twentieth more: of 24 it would be a third."""
    assert padded_size(outputs) == computed


class Classifier(nn.Module):
    """A convolution of 310 channels that are averaged, as the last one of SqueezeNet has 1,000."""

    def __init__(self, axes):
        super().__init__()
        self.last, self.axes = nn.Conv2d(8, 310, 1), axes

    def forward(self, x):
        return torch.relu(self.last(x)).mean(self.axes)


def over_the_image():
    torch.manual_seed(0)
    return Classifier((2, 3)).eval(), (torch.randn(1, 8, 6, 6),)


def over_the_channels():
    torch.manual_seed(0)
    return Classifier((1,)).eval(), (torch.randn(1, 8, 6, 6),)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("factory", "layout", "wide"),
    [(over_the_image, "NHWC", True), (over_the_image, "NCHW", False),
     (over_the_channels, "NHWC", False)],
)  # fmt: skip
def test_a_classifier_is_computed_wide_and_right(factory, layout, wide):
    target = target_of(2)
    source = NetworkSource(name=f"{__name__}:{factory.__name__}")
    lowered = lower(import_network(source), target, NetworkFormat(layout=layout))
    shapes = {shape for task in network_tasks(lowered, target) for shape, _ in task.shapes}
    assert ((6, 10, 32) in {shape[-3:] for shape in shapes}) == wide  # 310 fill 10 rows of 32
    assert torch_error(source, lowered) < 1e-5
