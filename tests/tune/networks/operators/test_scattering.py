"""Sums, products, means and extremes at places that a tensor names."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("include_self", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_reductions_of_repeated_places(tvm, include_self):
    places = torch.randint(0, 5, (9, 4))  # the last row gets nothing

    def reduced(x, v):
        return [
            x.scatter_reduce(0, places, v, how, include_self=include_self)
            for how in ("sum", "prod", "mean", "amax", "amin")
        ]

    assert_equal(reduced, torch.randn(6, 4), torch.randn(9, 4))


def test_indices_smaller_than_tensor_and_values(tvm):
    places = torch.tensor([[[0, 1]], [[3, 1]]])  # 2 x 1 x 2
    assert_equal(
        lambda x, v: (x.scatter(1, places, v), x.scatter_add(-2, places, v)),
        torch.randn(3, 4, 5),
        torch.randn(2, 3, 4),
    )


def test_one_value(tvm):
    places = torch.tensor([[0, 2], [1, 1]])
    assert_equal(
        lambda x: (x.scatter(1, places, 5.0), x.scatter(1, places, 5.0, reduce="add")),
        torch.randn(2, 4),
    )


def test_a_number_without_dimensions_is_written(tvm):
    place = torch.tensor(0)
    assert_equal(
        lambda x: (x.scatter(0, place, 5.0), x.scatter_add(-1, place, x)), torch.tensor(2.5)
    )
