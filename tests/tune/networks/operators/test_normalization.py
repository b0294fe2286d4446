"""Normalisations without a scale and a shift."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


def test_normalisations_without_scale_and_shift(tvm):
    groups, layer = nn.GroupNorm(2, 4, affine=False), nn.LayerNorm(6, elementwise_affine=False)
    instances = nn.InstanceNorm2d(4)
    assert_equal(lambda x: (groups(x), layer(x), instances(x)), torch.randn(2, 4, 7, 6))


def test_a_normalisation_of_doubles_is_folded(tvm):
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)]
    assert_equal(nn.Sequential(*layers).double(), torch.randn(1, 3, 5, 5).double())
