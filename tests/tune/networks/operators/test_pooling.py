"""Pools with every way to count, and where maxima are."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import (
    REWRITTEN_OR_BUILT,
    assert_equal,
    assert_rewritten_equal,
)

pytestmark = pytest.mark.tvm

SIZES = {1: (17,), 2: (17, 19), 3: (7, 8, 6)}
AVERAGES = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


class All(nn.Module):
    def __init__(self, *pools):
        super().__init__()
        self.pools = nn.ModuleList(pools)

    def forward(self, x):
        return [pool(x) for pool in self.pools]


@pytest.mark.parametrize(
    ("dims", "few", "assert_same"),
    [
        *((1, 2, assert_equal), (2, 6, assert_rewritten_equal), (3, 1, assert_equal)),
        *(pytest.param(n, 6, assert_equal, marks=pytest.mark.slow) for n in (1, 2, 3)),
    ],
)
def test_average_pools(tvm, dims, few, assert_same):
    pool = AVERAGES[dims]
    pools = [
        *(pool(3, 2, 1), pool(3, 2, 1, count_include_pad=False), pool(2, 2, 1, ceil_mode=True)),
        *(pool(3, 2, 1, ceil_mode=True, count_include_pad=False), pool(2, 3, ceil_mode=True)),
    ]
    if dims > 1:
        pools.append(pool(2, divisor_override=3))
    assert_same(All(*pools[:few]), torch.randn(2, 3, *SIZES[dims]))


@REWRITTEN_OR_BUILT
def test_maximum_pools_with_gaps_and_places(tvm, assert_same):
    pools = [
        *(nn.MaxPool2d(3, 2, 1, dilation=2), nn.MaxPool2d(2, 3, 1, ceil_mode=True)),
        *(nn.MaxPool2d(3, 2, 1, return_indices=True), nn.MaxPool2d((3, 2), 2, ceil_mode=True)),
    ]
    assert_same(All(*pools), torch.randn(2, 3, 17, 16))


@pytest.mark.slow
def test_maximum_pools_of_signals_and_volumes(tvm):
    assert_equal(nn.MaxPool1d(3, 2, 1, dilation=2), torch.randn(2, 3, 17))
    assert_equal(nn.MaxPool3d(2, 2, return_indices=True), torch.randn(2, 3, 7, 8, 6))


@REWRITTEN_OR_BUILT
def test_adaptive_maximum_pools(tvm, assert_same):
    assert_same(nn.AdaptiveMaxPool2d((7, 5), return_indices=True), torch.randn(2, 3, 17, 19))


@pytest.mark.slow
def test_more_adaptive_maximum_pools(tvm):
    assert_equal(nn.AdaptiveMaxPool2d(1), torch.randn(2, 3, 17, 19))
    assert_equal(nn.AdaptiveMaxPool3d((2, 3, 4)), torch.randn(2, 3, 5, 7, 9))


def test_a_window_behind_the_tensor_is_dropped(tvm):
    pools = [nn.MaxPool2d(2, 2, 1, ceil_mode=True), nn.MaxPool2d((2, 3), (2, 1), 1, ceil_mode=True)]
    assert_equal(All(*pools, nn.MaxPool2d(2, 2, 1)), torch.randn(1, 2, 3, 4))
    assert_equal(nn.MaxPool1d(2, 2, 1, ceil_mode=True), torch.randn(1, 2, 3))
