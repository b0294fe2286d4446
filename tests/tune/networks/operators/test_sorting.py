"""Orders without a sort of TVM's."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import REWRITTEN_OR_BUILT, assert_equal

pytestmark = pytest.mark.tvm


def test_sorts_keep_the_order_of_equal_elements(tvm):
    def ordered(n):
        down = torch.sort(n, dim=0, descending=True, stable=True)
        return (*torch.sort(n, dim=1, stable=True), *down)

    assert_equal(ordered, torch.randint(0, 3, (5, 9)))


@REWRITTEN_OR_BUILT
def test_greatest_elements_and_medians(tvm, assert_same):
    assert_same(
        lambda x: (
            *(*x.topk(3), *x.topk(2, 0), *x.topk(3, largest=False), x.topk(2, sorted=False)[0]),
            *(*x.kthvalue(2, 1), *x.median(1), x.median(), x.argsort(-1), x.quantile(0.3, dim=1)),
        ),
        torch.randn(5, 6),
    )


@pytest.mark.slow
def test_a_few_of_a_long_dimension(tvm):
    assert_equal(
        lambda x: (*x.topk(40), (x > 0).sort(1)[0]), torch.randperm(10000).view(2, 5000).float()
    )


@REWRITTEN_OR_BUILT
def test_places_in_a_sorted_list(tvm, assert_same):
    steps = torch.tensor([-1.0, 0.0, 1.0])
    assert_same(
        lambda x: (torch.searchsorted(steps, x), torch.bucketize(x, steps, right=True)),
        torch.tensor([[-2.0, -1.0], [0.5, 1.0]]),
    )


def test_numbers_without_dimensions_and_no_numbers(tvm):
    assert_equal(
        lambda x: (
            *(*x.sort(), *x.topk(1), *x.kthvalue(1, 0), *x.median(0), x.argsort(), x.median()),
        ),
        torch.tensor(2.5),
    )
    assert_equal(lambda x: x.sort(1), torch.zeros(3, 0))
