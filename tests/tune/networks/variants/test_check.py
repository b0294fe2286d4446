"""Evaluation against torch and by hand; right graphs and rules are accepted, wrong refused."""

import importlib
import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from pruner.tune.networks.variants import check as checking
from pruner.tune.networks.variants import graph as graphs
from pruner.tune.networks.variants.check import Checker, Fields, Floats, P, Q, degree, places_of
from pruner.tune.networks.variants.evaluation import evaluate, whole
from pruner.tune.networks.variants.graph import (
    contract,
    convolution_of,
    convolve,
    elementwise,
    leaf,
    nodes,
    replaced,
    reshape,
    rows,
)
from pruner.tune.networks.variants.rules import RULES
from pruner.tune.networks.variants.rules.products import order, winograd
from tests.paths import REPOSITORY
from tests.tune.some_slow import some_slow

MATMUL = "m k, k n -> m n"
DOUBLE = Floats("float64")


def value(node, box=None):
    return evaluate((node,), whole((node,)) if box is None else [box], DOUBLE)[0][0]


def refused(before, after):
    return Checker((before,))((after,)).refused


def called(name, *args):
    return elementwise("call", *args, name=name)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("stride", "dilation", "padding"), [(1, 1, 1), (2, 1, 3), (1, 2, 0)])
def test_a_convolution_is_that_of_torch_at_every_box(last, stride, dilation, padding):
    how = {"stride": stride, "dilation": dilation, "padding": padding}
    x = leaf("x", (2, 9, 8, 3) if last else (2, 3, 9, 8))
    w = leaf("w", (3, 2, 3, 4) if last else (4, 3, 3, 2))
    image, weights = (torch.tensor(value(node)) for node in (x, w))
    if last:
        image, weights = image.permute(0, 3, 1, 2), weights.permute(3, 2, 0, 1)
    wanted = functional.conv2d(image, weights, **how)
    two = {name: (number, number) for name, number in how.items() if name != "stride"}
    node = convolve(
        x, w, channels_last=last, size=wanted.shape[2:], strides=(stride, stride), **two
    )
    wanted = (wanted.permute(0, 2, 3, 1) if last else wanted).numpy()
    assert np.allclose(value(node), wanted, rtol=1e-12, atol=1e-14)
    some = tuple(np.arange(extent)[:: 1 + axis] for axis, extent in enumerate(node.shape))
    assert np.allclose(value(node, some), value(node)[np.ix_(*some)], rtol=1e-12, atol=1e-14)
    found = convolution_of(node)
    assert (found.strides, found.dilation, found.padding, found.taps) == (
        (stride, stride), (dilation, dilation), (padding, padding), (3, 2),
    )  # fmt: skip


def test_a_convolution_with_the_axes_of_its_weights_moved_is_none():
    """Only the images and results of the first two are where the shape would allow it."""
    x, w = leaf("x", (1, 64, 8, 8)), leaf("w", (3, 3, 64, 16))
    assert convolution_of(contract("n c h+r w+s, r s c o -> n o h w", x, w, h=6, w=6)) is None


def test_the_order_of_a_chain_changes_twice():
    """The sum of the second inner product has the letter that the first change gave a row."""
    a, b, c, d = leaf("a", (8, 16)), leaf("b", (16, 32)), leaf("c", (32, 4)), leaf("d", (4, 64))
    graph = (contract(MATMUL, contract(MATMUL, a, b), contract(MATMUL, c, d)),)
    found = {graph}
    for _ in range(2):
        found |= {replaced(one, new) for one in found for new in order(one)}
    assert any(node.shape == (16, 4) for one in found for node in nodes(one))  # B C
    assert all(refused(graph[0], new) is None for (new,) in found)


def test_movements_are_those_of_numpy():
    x, y = leaf("x", (4, 6, 5)), leaf("y", (4, 2, 5))
    a, b = value(x), value(y)
    joined = graphs.concat([x, y], 1)
    moved = reshape(graphs.permute(graphs.cut(joined, 1, 3, 7), (2, 0, 1)), (5, 2, 8))
    wanted = np.concatenate([a, b], 1)[:, 3:7].transpose(2, 0, 1).reshape(5, 2, 8)
    assert np.array_equal(value(moved), wanted)
    some = tuple(map(np.array, ([1, 4], [0], [2, 3, 7])))
    assert np.array_equal(value(moved, some), wanted[np.ix_(*some)])
    soft = value(rows("softmax", x, 1))
    assert np.allclose(soft, torch.softmax(torch.tensor(a), 1).numpy())
    # `unravel_index` of NumPy 2.4.6 is wrong there.
    x = leaf("x", (64, 64, 4))
    assert np.array_equal(value(reshape(x, (64, 64, 4, 1)))[..., 0], value(x))


@pytest.mark.parametrize("summands", [checking._SUMMANDS, 7])
def test_products_are_exact_in_both_fields(summands, monkeypatch):
    rng = np.random.default_rng(0)
    left = np.stack([rng.integers(0, m, (1, 3, 50)) for m in (P, Q)])
    right = np.stack([rng.integers(0, m, (1, 50, 2)) for m in (P, Q)])
    left[:, 0, 0], right[:, 0, :, 0] = np.array([[P - 1], [Q - 1]]), np.array([[P - 1], [Q - 1]])
    monkeypatch.setattr(checking, "_SUMMANDS", summands)
    found = Fields().matmul(left, right)
    for row, modulus in enumerate((P, Q)):
        exact = left[row, 0].astype(object) @ right[row, 0].astype(object) % modulus
        assert np.array_equal(found[row, 0], exact.astype(np.int64))


def test_both_moduli_are_prime():
    """Miller and Rabin's test is exact below 3.2 * 10^9 with these three bases."""
    assert P == 2 * Q + 1
    for number in (P, Q):
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7):
            powers = [pow(base, odd << i, number) for i in range(twos)]
            assert powers[0] == 1 or number - 1 in powers


def test_what_holds_in_the_reals_is_accepted_and_nothing_else():
    x, y = leaf("x", (3, 4)), leaf("y", (3, 4))
    exp, relu = partial(called, "exp"), partial(called, "relu")
    add, product = elementwise("add", x, y), elementwise("multiply", exp(x), exp(y))
    assert refused(exp(add), product) is None
    assert refused(exp(add), elementwise("add", exp(x), exp(y)))
    quotient = elementwise("divide", x, y)
    assert refused(x, elementwise("multiply", quotient, y)) is None
    assert refused(quotient, elementwise("divide", y, x))
    assert refused(graphs.permute(relu(x), (1, 0)), relu(graphs.permute(x, (1, 0)))) is None
    assert refused(relu(add), elementwise("add", relu(x), relu(y)))
    assert refused(relu(x, y), relu(y, x))  # hashes keep the order of arguments
    largest = rows("max", graphs.permute(x, (1, 0)), 0)
    assert refused(rows("max", x, 1), graphs.permute(largest, (1, 0))) is None
    assert refused(rows("max", x, 1), graphs.cut(x, 1, 0, 1))


def test_the_bound_is_the_degree_by_the_size_of_both_fields():
    a, b, c = leaf("a", (2, 2)), leaf("b", (2, 2)), leaf("c", (2, 2))
    product = contract(MATMUL, contract(MATMUL, a, b), c)
    assert degree((product,)) == 3
    assert degree((elementwise("divide", product, elementwise("add", a, b)),)) == 4
    assert Checker((product,)).exactly((product,)).bound == pytest.approx(6 / P * 6 / Q)
    both = pytest.approx((6 / P * 6 / Q) ** 2)
    assert Checker((product,))((product,)).bound == both


def test_an_inaccurate_graph_is_refused_by_its_rounding_error():
    x, far = leaf("x", (3, 4)), graphs.literal([1_000_000])
    back = elementwise("subtract", elementwise("add", x, far), far)
    checker = Checker((x,))
    assert checker.exactly((back,)).refused is None
    found = checker((back,))
    assert "rounding error" in found.refused
    assert 1e-3 < found.error < 1e-1  # a float32 of a million has steps of 1/16


def in_parts(x, parts):
    """Softmax with a maximum of each part, which is wrong where a mask covers a part."""
    rows_of = reshape(x, (x.shape[0], parts, x.shape[1] // parts))
    largest = rows("max", rows_of, 2)
    powers = called("exp", elementwise("subtract", rows_of, largest))
    shift = elementwise("subtract", largest, rows("max", largest, 1))
    powers = reshape(elementwise("multiply", powers, called("exp", shift)), x.shape)
    total = reshape(contract("m n -> m", powers), (x.shape[0], 1))
    return elementwise("divide", powers, total)


def test_a_variant_must_be_finite_under_a_mask_of_minus_infinity():
    scores, mask = leaf("scores", (5, 16)), leaf("mask", (5, 16))
    x = elementwise("add", scores, mask)
    soft = rows("softmax", x, 1)
    assert Checker((soft,)).exactly((in_parts(x, 4),)).refused is None
    assert "nan" in refused(soft, in_parts(x, 4))
    assert refused(soft, in_parts(x, 1)) is None
    # the second output is not hidden by the first
    both = Checker((scores, soft))
    assert "nan" in both((scores, in_parts(x, 4))).refused


def swapped(x, one, other):
    parts = [graphs.cut(x, 0, at, at + 1) for at in range(x.shape[0])]
    parts[one], parts[other] = parts[other], parts[one]
    return graphs.concat(parts, 0)


def test_swapped_rows_are_found_by_all_places_of_small_outputs():
    x = leaf("x", (64, 64))
    assert refused(x, swapped(x, 9, 10))
    y = leaf("y", (3, 4))
    assert "shapes" in refused(y, graphs.permute(y, (1, 0)))


def test_checked_places_are_of_each_point_its_own_with_a_run_of_a_tile_and_both_ends():
    large = leaf("x", (64, 2048))
    (one,), (other,) = (places_of((large,), 9, seed=seed) for seed in range(2))
    assert set(one[0]) != set(other[0])
    # places of 56 that are free: 1 and 1 of the fields, 24 for rounding
    missed = 54 / 56 * 54 / 56 * (32 * 31) / (56 * 55)
    found = sum(bool(refused(large, swapped(large, at, at + 1))) for at in range(6, 61, 2))
    assert abs(found / 28 - (1 - missed)) < 0.2
    (box,) = places_of((leaf("x", (5, 224)),), 9)
    assert box[0].tolist() == [0, 1, 2, 3, 4]
    assert len(box[1]) == 9
    assert {0, 1, 2, 3, 4, 5, 222, 223} < set(box[1].tolist())


def test_equal_nodes_are_one():
    a, b = leaf("a", (2, 3)), leaf("b", (3, 2))
    one, other = contract(MATMUL, a, b), contract(MATMUL, a, b)
    assert one == other
    assert len(nodes((one, other))) == 3
    with pytest.raises(ValueError, match="k is 3 and 2"):
        contract(MATMUL, a, a)


def tiles(size, channels=8, *, constant=True):
    """A 3x3 convolution, and the same by Winograd's tiles of 2 and of 4 pixels."""
    x = leaf("x", (1, size, size, channels))
    w = leaf("w", (3, 3, channels, channels), constant=constant)
    node = convolve(x, w, channels_last=True, size=(size, size), padding=(1, 1))
    return node, [new[node] for new in winograd((node,))]


def test_winograds_tiles_are_right_for_weights_that_are_inputs_too():
    for constant in (True, False):
        node, found = tiles(7, 3, constant=constant)
        assert [Checker((node,))((one,)).refused for one in found] == [None, None]
        # five contractions in each run, and two transforms of weights that are inputs
        for one in found:
            computed = [n for n in nodes((one,)) if n.op == "contract" and not n.constant]
            assert len(computed) == (5 if constant else 7)


def test_the_error_of_halves_is_of_rounded_arguments_and_too_large_for_winograds_large_tiles():
    a, b = leaf("a", (5, 64)), leaf("b", (64, 3))
    product = contract(MATMUL, a, b)
    exact = value(a) @ value(b)
    rounded = value(a).astype(np.float16).astype(float) @ value(b).astype(np.float16).astype(float)
    wanted = np.abs(rounded - exact).max() / np.abs(exact).max()
    found = Checker((product,), "float16")((product,))
    assert found.error == found.own_error == pytest.approx(wanted, rel=0.02)
    assert 1e-4 < wanted < 1e-3
    node, (two, four) = tiles(14)
    checker = Checker((node,), "float16")
    found = checker((two,))
    assert found.refused is None
    assert found.own_error < found.error < 3e-3
    assert "its rounding error is" in checker((four,)).refused


def test_a_variant_of_halves_must_be_finite_for_inputs_of_a_thousand():
    """100 a is too large for float16 where a is above 655."""
    a, b, hundred = leaf("a", (5, 64)), leaf("b", (64, 3)), graphs.literal([100])
    product = contract(MATMUL, a, b)
    grown = contract(MATMUL, elementwise("multiply", a, hundred), b)
    back = elementwise("divide", grown, hundred)
    assert refused(product, back) is None
    message = Checker((product,), "float16")((back,)).refused
    assert "nan" in message or "inf" in message
    # the original of a chain is not finite either: its first product is a sum of 64 large numbers
    c = leaf("c", (3, 4))
    chain, other = contract(MATMUL, product, c), contract(MATMUL, a, contract(MATMUL, b, c))
    assert Checker((chain,), "float16")((other,)).refused is None


def test_the_error_of_one_output_does_not_excuse_another():
    """An original that rounds much in its first output allows no more in its second."""
    x, far = leaf("x", (3, 4)), graphs.literal([1_000_000])
    rough = elementwise("subtract", elementwise("add", x, far), far)
    checker = Checker((rough, x))
    assert checker((rough, x)).refused is None
    assert "rounding error" in checker((rough, rough)).refused


SMALL = (3, 4, 3, 8)
rule_by_name = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)


@pytest.fixture
def cases(monkeypatch):
    """The graphs of `benchmarks/variants.py`."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    return importlib.import_module("variants")


def refusals(cases, rule, most=None):
    graph = cases.CASES[rule.__name__](*SMALL)
    checker = Checker(graph)
    for what, mutant in itertools.islice(cases.mutants(graph, rule), most):
        assert checker.exactly(mutant).refused, what
        yield what


@some_slow("shape", [0], range(1, 10))
@rule_by_name
def test_a_right_rule_is_accepted(rule, shape, cases):
    graph = cases.CASES[rule.__name__](*cases.SHAPES[shape])
    checker, applications = Checker(graph), list(rule(graph))
    assert applications
    for application in applications:
        verdict = checker(graphs.replaced(graph, application))
        assert verdict.refused is None
        assert verdict.bound < 1e-14
        assert verdict.error < 1e-5


@rule_by_name
def test_some_wrong_versions_are_refused(rule, cases):
    assert list(refusals(cases, rule, most=12))


@pytest.mark.slow
def test_all_wrong_versions_are_refused(cases):
    kinds = Counter(what for rule in RULES for what in refusals(cases, rule))
    assert sum(kinds.values()) > 200
    assert {"constant", "swapped operands", "missing term", "axis", "place"} < set(kinds)
