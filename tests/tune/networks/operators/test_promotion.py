"""Operands in the type that torch computes in."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


def test_integers_with_floats(tvm):
    assert_equal(
        lambda x, n: (
            *(n / 2, 1 / n, x / n, n + 0.5, 2.5 - n, x * n, n**0.5, x > n, n <= 1.5),
            *(torch.cat([x, n], -1), torch.where(n > 2, n, 0.5), n // 2.5, x // n),
        ),
        torch.rand(5, 6) + 0.1,
        torch.randint(1, 9, (5, 6)),
    )


def test_functions_of_integers_are_floats(tvm):
    assert_equal(
        lambda n: (n.sqrt(), n.rsqrt(), n.exp(), n.log(), n.sigmoid(), n.tanh()),
        torch.randint(1, 9, (5, 6)),
    )


def test_a_double_of_no_dimensions_makes_no_doubles(tvm):
    two = torch.tensor(2.0, dtype=torch.float64)
    assert_equal(lambda x: (x * two, x / torch.sqrt(torch.tensor(x.shape[-1]))), torch.randn(5, 6))


def test_sums_of_small_integers_are_large(tvm):
    assert_equal(
        lambda n: (n.cumsum(0), (n > 3).cumsum(1), n.prod(1), n.sum()),
        torch.randint(1, 5, (5, 6), dtype=torch.int32),
    )


def test_types_of_new_tensors(tvm):
    assert_equal(
        lambda n: (
            *(
                torch.zeros_like(n, dtype=torch.float32),
                torch.full_like(n, 0.5, dtype=torch.float32),
            ),
            *(n.new_zeros(3, dtype=torch.float32) + n[0, :3], n.new_ones(2)),
        ),
        torch.randint(0, 9, (5, 6)),
    )


def test_products_keep_doubles_and_integers(tvm):
    doubles, whole = torch.randn(5, 6, dtype=torch.float64), torch.randint(-9, 9, (5, 6)) * 99991
    assert_equal(lambda x, n: (x @ x.T, n @ n.T), doubles, whole, tolerance=1e-14)


def test_half_precision_layers_have_a_bias(tvm):
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    )
    assert_equal(layers.half(), torch.randn(2, 3, 4, 4).half(), tolerance=1e-2)
