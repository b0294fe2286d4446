"""Extremes, truth values, moments, norms and orders along dimensions."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.tune.networks.operators.against_torch import WAYS, All, Function, assert_equal

pytestmark = pytest.mark.tvm
INF = float("inf")


def ordered(n):
    down = torch.sort(n, dim=0, descending=True, stable=True)
    return (*torch.sort(n, dim=1, stable=True), *down)


CASES = {
    "extremes with their places": (
        lambda x: (
            *(*x.max(1), *x.min(0, keepdim=True), x.amax((0, 2)), x.amin(), x.max(), x.min()),
            *(x.argmax(), x.argmin(1), x.argmax(-1, keepdim=True), *x.aminmax(dim=1)),
        ),
        torch.randn(5, 6, 7),
    ),
    "the first of equal extremes": (
        lambda n: (*n.max(1), *n.min(0)),
        torch.randint(0, 3, (5, 6)),
    ),
    "extremes of truth values": (
        lambda m: (m.amax(1), m.amin(0), *m.max(1), *m.min(0), m.max(), m.min()),
        torch.tensor([[True, False, True], [False, False, False]]),
    ),
    "extremes of infinities": (
        lambda x: [
            found
            for one in (x, x.double(), x.half())
            for found in (*one.max(1), *(-one).min(1), one[0].max(), one.amax((0, 1)))
        ],
        torch.tensor([[-INF, -INF], [-INF, torch.finfo(torch.float32).min], [1.0, INF]]),
    ),
    "truth of any and all": (
        lambda x: (x.any(), x.all(), x.any(1), x.all(0, keepdim=True), (x > 0).any((0, 1))),
        torch.tensor([[0.0, -1.0, 0.5], [0.0, 0.0, 0.0]]),
    ),
    "truth of all or no dimensions": (
        lambda x: (
            *(x.any(dim=None), x.all(dim=None, keepdim=True), x.any(dim=()), x.all(dim=[])),
            *(x[0, 0].any(), x[1, 1].all(0)),
        ),
        torch.tensor([[0.0, 1.0], [0.0, 0.3]]),
    ),
    "moments and norms": (
        lambda x, y: (
            *(*torch.var_mean(x, 1), *torch.std_mean(x, -1), x.std((0, 1)), x.var(correction=0)),
            *(x.norm(order, dim=1) for order in (0, 1, 2, 3.5, float("inf"), -float("inf"))),
            *(torch.cdist(x, y), x.prod(1), x.logsumexp(0)),
        ),
        *(torch.randn(5, 6).relu(), torch.randn(7, 6)),
    ),
    "sorts keep the order of equal elements": (ordered, torch.randint(0, 3, (5, 9))),
    "numbers without dimensions": (
        lambda x: (
            *(*x.sort(), *x.topk(1), *x.kthvalue(1, 0), *x.median(0), x.argsort(), x.median()),
        ),
        torch.tensor(2.5),
    ),
    "no numbers": (lambda x: x.sort(1), torch.zeros(3, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_function_along_dimensions_is_that_of_torch(case):
    assert_equal(*CASES[case])


def test_numbers_of_half_precision_are_added_in_single_precision():
    """The sum of 4,096 ones would be 2,048."""
    image = torch.ones(1, 2, 64, 64).half() * 10 + torch.rand(1, 2, 64, 64).half()
    assert_equal(
        lambda x: (
            *(x.mean((2, 3)), x.mean(), x.sum((2, 3)), (x / 99).sum(), x.var((2, 3))),
            *(x.flatten(1).norm(dim=1), functional.avg_pool2d(x, 64), x[0, 0].cumsum(1)),
            *((x / 9).flatten(1).softmax(1) * 999, x.flatten(1).log_softmax(1), x[0, 0].sum()),
        ),
        image,
        tolerance=2e-3,
    )


def test_normalisations_without_scale_and_shift():
    groups, layer = nn.GroupNorm(2, 4, affine=False), nn.LayerNorm(6, elementwise_affine=False)
    instances = nn.InstanceNorm2d(4)
    assert_equal(lambda x: (groups(x), layer(x), instances(x)), torch.randn(2, 4, 7, 6))


def norms(*more):
    """Of the statistics of their input."""
    batch = nn.BatchNorm2d(4, track_running_stats=False)
    return All(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), batch, *more)


def test_norms_keep_the_variance_next_to_a_large_mean():
    image = torch.randint(-9, 10, (2, 4, 16, 16)) + 1e4  # float32 has all of its sums
    assert_equal(norms(), image, tolerance=1e-3)
    assert_equal(nn.GroupNorm(2, 4), image.flatten(2), tolerance=1e-3)


def test_norms_of_other_types():
    image = torch.randn(2, 4, 7, 6)
    assert_equal(norms(nn.LayerNorm(6)).double(), image.double() + 1e6, tolerance=1e-6)
    assert_equal(norms().half(), image.half() + 9, tolerance=1e-2)  # torch itself rounds
    assert_equal(nn.GroupNorm(2, 4), torch.randn(3, 4))  # without an image


def test_a_normalisation_of_doubles_is_folded():
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)]
    assert_equal(nn.Sequential(*layers).double(), torch.randn(1, 3, 5, 5).double())


def test_a_bias_that_widens_its_tensor_stays_before_the_norm():
    """The norm of the tensor alone would have one channel, and three means."""
    norm, bias = nn.BatchNorm2d(3).eval(), nn.Parameter(torch.randn(1, 3, 1, 1))
    norm.running_mean.copy_(torch.randn(3))
    module = Function(lambda x: norm(x + bias))
    module.norm, module.bias = norm, bias
    assert_equal(module, torch.randn(2, 1, 4, 4))


@WAYS
def test_extremes_of_beginnings(assert_same):
    assert_same(
        lambda x, n: (*x.cummax(1), x.logcumsumexp(1), *x.cummin(0), *n.cummax(1)),
        torch.randn(5, 6),
        torch.randint(0, 3, (5, 6)),
    )


@WAYS
def test_greatest_elements_and_medians(assert_same):
    assert_same(
        lambda x: (
            *(*x.topk(3), *x.topk(2, 0), *x.topk(3, largest=False), x.topk(2, sorted=False)[0]),
            *(*x.kthvalue(2, 1), *x.median(1), x.median(), x.argsort(-1), x.quantile(0.3, dim=1)),
        ),
        torch.randn(5, 6),
    )


@pytest.mark.slow
def test_a_few_of_a_long_dimension():
    assert_equal(
        lambda x: (*x.topk(40), (x > 0).sort(1)[0]), torch.randperm(10000).view(2, 5000).float()
    )


@WAYS
def test_places_in_a_sorted_list(assert_same):
    steps = torch.tensor([-1.0, 0.0, 1.0])
    assert_same(
        lambda x: (torch.searchsorted(steps, x), torch.bucketize(x, steps, right=True)),
        torch.tensor([[-2.0, -1.0], [0.5, 1.0]]),
    )
