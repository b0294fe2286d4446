"""Recorded arithmetic against the same arithmetic in torch, written out."""

import numpy as np
import pytest
import torch

from pruner.models.analyzer.derivatives import RelaxedScores
from pruner.program.index.affine import plain
from pruner.program.relaxed import Relaxed, RelaxedDecisions

ANCHORS = np.array([[6, 2, 0], [4, 3, 1]])


@pytest.fixture
def columns():
    decisions = RelaxedDecisions.of(ANCHORS, {0, 1})
    return decisions[:, 0], decisions[:, 1], decisions[:, 2]


def evaluated(value, at):
    assert isinstance(value, Relaxed)
    return RelaxedScores(value.formula, [])(torch.as_tensor(at, dtype=torch.float64))[0].numpy()


AT = np.array([[5.5, 2.5, 0.0], [4.5, 2.5, 1.0]])


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda a, b: 2 * a + b / 4 - 1, lambda a, b: 2 * a + b / 4 - 1),
        (lambda a, b: np.minimum(a, 2 * b) ** 0.5, lambda a, b: np.minimum(a, 2 * b) ** 0.5),
        (lambda a, b: np.log(a.astype(np.float64)) * 1, lambda a, b: np.log(a)),
        # 6 div 4 is 1, a half less than the quotient; 4 div 4 is exact
        (lambda a, b: a // 4, lambda a, b: a / 4 - [0.5, 0]),
        # upwards: 6 / 4 gains a half
        (lambda a, b: -(-a // 4), lambda a, b: a / 4 + [0.5, 0]),
        (lambda a, b: np.ceil(a / 4), lambda a, b: a / 4 + [0.5, 0]),
        # the comparison is that of the anchors: 6 > 5, 4 < 5
        (lambda a, b: np.where(a > 5, a, b), lambda a, b: [a[0], b[1]]),
        # the remainder is a number of the anchors: 6 mod 4, 4 mod 4
        (lambda a, b: b + a % 4, lambda a, b: b + np.array([2, 0])),
        (lambda a, b: np.stack([a, b]).prod(axis=0), lambda a, b: a * b),
        (lambda a, b: np.stack([a, b])[::-1].cumprod(0)[1], lambda a, b: b * a),
        (lambda a, b: np.stack([a, b])[np.array([1, 0]), np.arange(2)], lambda a, b: [b[0], a[1]]),
        (lambda a, b: np.sort(np.stack([a, 3 * b]), axis=0)[0], lambda a, b: [a[0], a[1]]),
        (lambda a, b: np.clip(a, 1, 5), lambda a, b: np.clip(a, 1, 5)),
        (lambda a, b: np.concatenate([a, b])[1:3], lambda a, b: [a[1], b[0]]),
    ],
)
def test_a_formula_equals_the_numbers_of_the_anchors_and_moves_with_them(
    columns, formula, expected
):
    a, b, _ = columns
    value = formula(a, b)
    plain_value = formula(ANCHORS[:, 0], ANCHORS[:, 1])
    np.testing.assert_array_equal(np.asarray(value), plain_value)
    np.testing.assert_allclose(evaluated(value, ANCHORS), plain_value, rtol=1e-15)
    np.testing.assert_allclose(evaluated(value, AT), expected(AT[:, 0], AT[:, 1]), rtol=1e-15)


def test_other_decisions_comparisons_and_products_with_0_are_plain_numbers(columns):
    a, _, other = columns
    for value in (other, a > 5, a * np.zeros(2), np.where(a > 0, 1, a)):
        assert type(value) is np.ndarray


def test_equal_numbers_of_the_anchors_stay_apart(columns):
    a = columns[0] // columns[0]
    assert plain(np.asarray(a)) == 1
    assert plain(a) is a


def test_what_would_lose_the_formula_raises(columns):
    a, b, _ = columns
    with pytest.raises(TypeError, match="in place"):
        a[0] = 1
    plain_numbers = np.ones(2)
    with pytest.raises(TypeError, match="plain array"):
        plain_numbers *= b
    with pytest.raises(TypeError, match="cumsum"):
        np.cumsum(a)
    with pytest.raises(TypeError, match="lost its formula"):
        a.reshape(2, 1) + 1


def test_a_constant_that_changes_later_keeps_its_recorded_value(columns):
    a, b, _ = columns
    mask, numbers = np.array([True, False]), np.array([1.0, 2.0])
    value = np.where(mask, a, b) + numbers
    mask[:], numbers[:] = False, 7
    np.testing.assert_array_equal(evaluated(value, ANCHORS), [7, 5])


def test_equal_operations_are_recorded_once(columns):
    a, b, _ = columns
    assert (a * b).formula is (a * b).formula
