"""Convolutions that TVM lacks, by plain ones."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import assert_equal, assert_rewritten_equal

pytestmark = pytest.mark.tvm

TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
SIZES = {1: (9,), 2: (7, 6), 3: (4, 5, 3)}


@pytest.mark.parametrize(
    ("dims", "few", "assert_same"),
    [
        *((1, 2, assert_equal), (2, 5, assert_rewritten_equal), (3, 1, assert_equal)),
        *(pytest.param(n, 5, assert_equal, marks=pytest.mark.slow) for n in (1, 2, 3)),
    ],
)
def test_transposed_convolutions(tvm, dims, few, assert_same):
    make = TRANSPOSED[dims]
    x = torch.randn(2, 4, *SIZES[dims])
    layers = [
        make(4, 6, 3, 2, 1, output_padding=1),
        make(4, 6, 3, 2, groups=2),
        make(4, 4, 4, 2, 1, groups=4, bias=False),
        make(4, 6, 3, 2, 1, dilation=2),
    ]
    if dims < 3:  # which torch cannot export
        layers.append(make(4, 6, 2, 1, 2))  # the padding cuts more than the kernel adds

    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(layers[:few])

        def forward(self, x):
            return [layer(x) for layer in self.layers]

    assert_same(All(), x)


def test_three_tensors(tvm):
    assert_equal(nn.Bilinear(5, 6, 4), torch.randn(3, 5), torch.randn(3, 6))


def test_convolutions_keep_doubles(tvm):
    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(
                nn.Conv2d(4, 6, 3, 2, 1), nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1)
            )
            self.signal, self.volume = nn.Conv1d(4, 4, 3, bias=False), nn.Conv3d(2, 2, 2)
            self.wider = nn.ConvTranspose1d(4, 4, 3, 2)

        def forward(self, x, y, z):
            return self.image(x), self.signal(y), self.wider(y), self.volume(z)

    shapes = ((1, 4, 8, 8), (1, 4, 9), (1, 2, 4, 4, 4))
    drawn = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    assert_equal(All().double(), *drawn, tolerance=1e-12)


def test_a_sum_of_products_of_a_batch(tvm):
    x, y = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    assert_equal(lambda b, x, y: b.addbmm(x, y, beta=2, alpha=0.5), torch.randn(2, 5), x, y)
