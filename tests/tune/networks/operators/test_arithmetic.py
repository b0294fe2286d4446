"""Factors, bounds, scales and whole numbers of single elements."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


def test_the_second_operand_of_a_sum_may_have_a_factor(tvm):
    assert_equal(
        lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=3), torch.add(x, 1, alpha=2)),
        torch.randn(5, 6),
        torch.randn(5, 6),
    )


def test_integers_are_clamped_on_one_side(tvm):
    assert_equal(
        lambda x: (
            x.clamp(min=0),
            x.clamp(max=2),
            x.clamp(-3, 3),
            x.clamp(min=0.5),
            x.int().clamp(1),
        ),
        torch.randint(-9, 9, (5, 6)),
    )


def test_scaled_activations(tvm):
    x = torch.tensor([-100.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 100.0])
    assert_equal(lambda x: (torch.selu(x), torch.celu(x, 1.7), torch.nn.functional.elu(x, 1.5)), x)


def test_numbers_become_truth_values_without_rounding(tvm):
    assert_equal(lambda x: (x.bool(), (x * 3).int()), torch.tensor([0.0, 0.3, -0.4, 2.0]))


def test_integers_are_raised_shifted_and_divided(tvm):
    assert_equal(
        lambda x: (
            *(x.abs() ** 2, 2 ** x.abs(), x.abs() ** x.abs(), x << 2, x >> 1),
            *(torch.div(x, 4, rounding_mode=how) for how in ("floor", "trunc")),
            *(x // 4, x % 4, torch.fmod(x, 4)),
        ),
        torch.randint(-6, 7, (5, 6)),
    )


def test_ranges_are_those_of_torch(tvm):
    assert_equal(
        lambda x: (
            *(x * torch.linspace(0, 1, 11), x * torch.linspace(3, -1, 11)),
            *(x * torch.arange(22, 0, -2), x + torch.arange(0, 1.1, 0.1), torch.eye(11) * x),
        ),
        torch.randn(11),
    )


def test_functions_that_tvm_lacks(tvm):
    assert_equal(
        lambda x, y: (
            *(torch.exp2(x), torch.erfc(x), torch.frac(x), torch.hypot(x, y)),
            *(torch.copysign(x, y), torch.fmax(x, y), torch.fmin(x, y), torch.logaddexp(x, y)),
        ),
        torch.randn(5, 6),
        torch.randn(5, 6),
    )
