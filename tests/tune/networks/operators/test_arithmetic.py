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


def test_numbers_are_true_unless_they_are_zero(tvm):
    assert_equal(
        lambda x, y: (
            *(x.logical_not(), x.logical_and(y), x.logical_or(y), x.logical_xor(y)),
            *((y > 0).logical_not(), (y > 0).logical_and(x)),
        ),
        torch.tensor([0.0, 0.3, -0.4, 2.0]),
        torch.tensor([0.2, 0.0, 0.1, 0.0]),
    )


def test_infinities_and_signs_of_zero(tvm):
    inf = float("inf")
    assert_equal(
        lambda x, y: (
            *(torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.copysign(x, 2.0)),
            *(1 / torch.copysign(x, y), 1 / torch.copysign(x, -0.0)),
        ),
        torch.tensor([-inf, inf, -inf, 1.0, -0.0, 0.0, 3.0]),
        torch.tensor([-inf, inf, inf, 1.0, -0.0, -0.0, -inf]),
    )


def test_shifts_reach_the_last_bit(tvm):
    assert_equal(
        lambda a, b, c, d: (
            *(a >> 31, a >> 33, a >> 1, a << 2, b >> 7, b << 7, b << 8, b >> 3),
            *(c >> 63, c << 40, d >> 7, d >> 8),
        ),
        torch.tensor([-(2**31), -5, -1, 0, 7, 2**31 - 1], dtype=torch.int32),
        torch.tensor([-128, -1, 5, 127], dtype=torch.int8),
        torch.tensor([-(2**63), 2**62]),
        torch.tensor([255, 3], dtype=torch.uint8),
    )


def test_sums_and_products_of_truth_values(tvm):
    assert_equal(
        lambda x, y: (x + y, x * y, x + True, x * False, x + x.int(), x * 2),
        torch.tensor([True, True, False]),
        torch.tensor([True, False, False]),
    )
