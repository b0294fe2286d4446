"""Tensors of one number, finite or not."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


def test_masks_of_infinities(tvm):
    def masked(x):
        mask = torch.full((3, 3), float("-inf")).triu(1)
        return (x + mask).softmax(-1), torch.full((2,), float("inf")) * x[0, :2].abs().add(1)

    assert_equal(masked, torch.randn(3, 3))


def test_numbers_of_every_type(tvm):
    def filled(x):
        return x + torch.full((3,), 0.5), torch.full((2, 1), 7), torch.full((2,), True), x

    assert_equal(filled, torch.randn(3))
