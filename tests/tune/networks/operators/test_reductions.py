"""Extremes, truth values, moments and norms."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import (
    REWRITTEN_OR_BUILT,
    assert_equal,
)

pytestmark = pytest.mark.tvm


def test_extremes_over_dimensions_with_their_places(tvm):
    assert_equal(
        lambda x: (
            *(*x.max(1), *x.min(0, keepdim=True), x.amax((0, 2)), x.amin(), x.max(), x.min()),
            *(x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True), *x.aminmax(dim=1)),
        ),
        torch.randn(5, 6, 7),
    )


def test_the_first_of_equal_extremes_counts(tvm):
    assert_equal(lambda n: (*n.max(1), *n.min(0)), torch.randint(0, 3, (5, 6)))


def test_truth_of_any_and_all(tvm):
    x = torch.tensor([[0.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    assert_equal(
        lambda x: (x.any(), x.all(), x.any(1), x.all(0, keepdim=True), (x > 0).any((0, 1))), x
    )


def test_moments_and_norms(tvm):
    assert_equal(
        lambda x, y: (
            *(*torch.var_mean(x, 1), *torch.std_mean(x, -1), x.std((0, 1)), x.var(correction=0)),
            *(x.norm(order, dim=1) for order in (0, 1, 2, 3.5, float("inf"), -float("inf"))),
            *(torch.cdist(x, y), x.prod(1), x.logsumexp(0)),
        ),
        torch.randn(5, 6).relu(),
        torch.randn(7, 6),
    )


@REWRITTEN_OR_BUILT
def test_extremes_of_beginnings(tvm, assert_same):
    assert_same(lambda x: (*x.cummax(1), x.logcumsumexp(1)), torch.randn(5, 6))


@pytest.mark.slow
def test_more_extremes_of_beginnings(tvm):
    assert_equal(
        lambda x, n: (*x.cummin(0), *n.cummax(1)), torch.randn(5, 6), torch.randint(0, 3, (5, 6))
    )


def test_truths_of_all_or_no_dimensions(tvm):
    assert_equal(
        lambda x: (
            *(x.any(dim=None), x.all(dim=None, keepdim=True), x.any(dim=()), x.all(dim=[])),
            *(x[0, 0].any(), x[1, 1].all(0)),
        ),
        torch.tensor([[0.0, 1.0], [0.0, 0.3]]),
    )
