"""How far a result may be from the reference."""

import numpy as np
import pytest

from pruner.tune.measure.numerics import inputs, relative_error, tolerance


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.25),  # 0.5 of the largest, 2
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.5], [0.0], 0.5),  # nothing to scale by
        ([np.nan], [1.0], np.inf),
        ([1.0], [np.inf], np.inf),
        ([np.nan], [np.nan], np.inf),  # NaN everywhere proves nothing
    ],
)
def test_the_error_by_hand(found, wanted, expected):
    assert relative_error(np.array(found), np.array(wanted)) == expected


def test_unsigned_and_half_precision_do_not_wrap_or_overflow():
    assert relative_error(np.array([1], np.uint8), np.array([2], np.uint8)) == 0.5
    big = np.array([60000, -60000], np.float16)
    assert relative_error(big, -big) == 2.0


def test_integers_must_be_exact_and_the_coarsest_type_decides():
    assert tolerance([((2,), "int32"), ((2,), "int8")]) == 0.0
    assert tolerance([((2,), "float32"), ((2,), "float64")]) == 1e-4
    assert tolerance([((2,), "float32"), ((2,), "float16")]) == 3e-2


def test_inputs_are_the_same_for_everyone_and_in_range():
    arguments = [((50, 3), "float32"), ((200,), "int32"), ((200,), "bool"), ((9,), "float16")]
    first, second = inputs(arguments), inputs(arguments)
    for (shape, dtype), a, b in zip(arguments, first, second, strict=True):
        assert (a.shape, a.dtype.name) == (shape, dtype)
        np.testing.assert_array_equal(a, b)
    floats, integers, booleans, _ = first
    assert floats.min() < -0.5 < 0.5 < floats.max() <= 1
    assert set(integers.tolist()) == set(range(8))
    assert set(booleans.tolist()) == {True, False}
    assert not np.array_equal(inputs(arguments, seed=1)[0], floats)
