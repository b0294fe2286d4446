"""Orders without a sort of TVM's."""

import pytest
import torch

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


def test_sorts_keep_the_order_of_equal_elements(tvm):
    numbers = torch.randint(0, 3, (5, 9))
    wanted = [*numbers.sort(1, stable=True), *numbers.sort(0, descending=True, stable=True)]

    def ordered(n):
        down = torch.sort(n, dim=0, descending=True, stable=True)
        return (*torch.sort(n, dim=1, stable=True), *down)

    assert all(map(torch.equal, ordered(numbers), wanted))
    assert_equal(ordered, numbers)


def test_greatest_elements_and_medians(tvm):
    assert_equal(
        lambda x: (
            *(*x.topk(3), *x.topk(2, 0), *x.topk(3, largest=False), x.topk(2, sorted=False)[0]),
            *(*x.kthvalue(2, 1), *x.median(1), x.median(), x.argsort(-1), x.quantile(0.3, dim=1)),
        ),
        torch.randn(5, 6),
    )


def test_a_few_of_a_long_dimension(tvm):
    assert_equal(lambda x: x.topk(4), torch.randn(2, 5000))


def test_places_in_a_sorted_list(tvm):
    steps = torch.tensor([-1.0, 0.0, 1.0])
    assert_equal(
        lambda x: (torch.searchsorted(steps, x), torch.bucketize(x, steps, right=True)),
        torch.tensor([[-2.0, -1.0], [0.5, 1.0]]),
    )


def test_the_library_calls_no_sort(tvm):
    from pruner.tune.networks.torch_import import from_exported
    from tests.tune.networks.operators.against_torch import Function

    program = torch.export.export(Function(lambda x: (*x.topk(3), *x.max(1))), (torch.randn(5, 6),))
    text = from_exported(program).script()
    assert "topk" not in text
    assert "sort" not in text
