"""Arithmetic of measuring: how far a result may be from the reference, when repeats end."""

import numpy as np
import pytest

from experiments.adatune.run import mean_s, repeats_made
from pruner.processes import NoReference
from pruner.tune.measure import numerics
from pruner.tune.measure.jobs import AdaptiveRepeats
from pruner.tune.measure.numerics import inputs, load_reference, save_reference, step_of, tolerance


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.25),  # 0.5 of the largest, 2
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.5], [0.0], 0.5),  # nothing to scale by
        ([np.nan], [1.0], np.inf),
        ([1.0], [np.inf], np.inf),
        ([np.nan], [np.nan], np.inf),  # NaN everywhere proves nothing
        ([np.inf, -np.inf, 1.0], [np.inf, -np.inf, 2.0], 0.5),  # scaled by the largest number
        ([np.nan, 1.0], [np.nan, 2.0], 0.5),
        ([np.inf], [-np.inf], np.inf),
        ([np.inf, 1.0], [1.0, np.inf], np.inf),
        ([], [], 0.0),
        # neither wraps nor overflows
        (np.uint8([1]), np.uint8([2]), 0.5),
        (np.float16([60000, -60000]), np.float16([-60000, 60000]), 2.0),
    ],
)
def test_the_error_by_hand(found, wanted, expected):
    assert numerics.relative_error(np.array(found), np.array(wanted)) == expected


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.5 / (2 + 8 * 1.5)),  # medians of 1 and 2
        ([1.0, 0.1], [1.0, 0.0], 0.1 / (0 + 8 * 1.0)),  # zeros are no usual value
        ([0.5, 0.0], [0.0, 0.0], 0.5),  # nothing to scale by
        ([1e9, 0.0, 0.0], [1e9, 1.0, 1.0], 1 / (1 + 8)),  # not hidden by the largest
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([-np.inf, 1.0], [np.inf, 1.0], np.inf),
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([2.0, 1.0], [np.nan, 1.0], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_worst_element_by_hand(found, wanted, expected):
    assert numerics.worst_error(np.array(found), np.array(wanted)) == pytest.approx(expected)


@pytest.mark.parametrize(("dtype", "terms"), [("float32", 4096), ("float16", 512)])
def test_sums_in_another_order_are_right_and_a_lost_term_is_not(dtype, terms):
    """A matrix product by two orders of summation, in the precision of the type."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, (64, terms)).astype(dtype) for _ in range(2))

    def summed(order):
        total = np.zeros((64, 64), dtype)
        for k in order:
            total += np.outer(a[:, k], b[:, k]).astype(dtype)
        return total

    forward, backward = summed(range(terms)), summed(reversed(range(terms)))
    limit = tolerance([((2,), dtype)])
    assert 0 < numerics.worst_error(backward, forward) < limit
    if dtype == "float32":
        assert numerics.worst_error(summed(range(terms - 1)), forward) > limit


def test_what_is_saved_is_read_and_damage_is_no_reference(tmp_path):
    path = tmp_path / "reference.npz"
    save_reference(path, {"edges": [np.arange(3.0)], "signed": [np.ones(2), np.zeros(1)]})
    found = load_reference(str(path))
    assert {kind: [v.tolist() for v in values] for kind, values in found.items()} == {
        "signed": [[1, 1], [0]],
        "edges": [[0, 1, 2]],
    }
    short = np.array([0.5, 3.0], pytest.importorskip("ml_dtypes").bfloat16)
    save_reference(tmp_path / "bfloat16.npz", {"signed": [short]})
    (stored,) = load_reference(str(tmp_path / "bfloat16.npz"))["signed"]
    assert numerics.worst_error(short, stored) == 0
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(NoReference):
            load_reference(str(path))


def test_a_reference_whose_header_was_damaged_is_none(tmp_path):
    """NumPy gives 220 of its 320 rows without a word: right programs would be wrong."""
    path = tmp_path / "reference.npz"
    save_reference(path, {"signed": [np.ones((320, 40))]})
    path.write_bytes(path.read_bytes().replace(b"(320, 40)", b"(220, 40)"))
    with np.load(path) as stored:
        assert stored["signed.0"].shape == (220, 40)
    with pytest.raises(NoReference, match="damaged"):
        load_reference(str(path))


def test_kinds_of_inputs():
    arguments = [((4000,), "float32"), ((3,), "int8")]
    positive, edges = (inputs(arguments, kind=kind) for kind in ("positive", "edges"))
    assert 0 < positive[0].min() < 0.01
    assert positive[0].max() <= 1
    assert positive[0].dtype == edges[0].dtype == np.float32
    for edge in (0.0, 1.0, -1.0):
        assert 200 < (edges[0] == edge).sum() < 500
    assert 600 < ((edges[0] != 0) & (np.abs(edges[0]) < 1e-3)).sum() < 1400


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


def test_steps_by_hand():
    grid = np.array([0.0, 0.5, 0.5, 7.0, 0.0, -1.0, -1.0, 7.0])
    assert step_of(grid) == 0.5
    assert step_of(np.array([np.inf, *grid])) == 0.5
    assert step_of(np.array([0.0, 1.0])) == 0.0  # two values are always on a grid
    assert step_of(np.array([0.0, 0.0, 1.0, 1.0, 1.3, 1.3])) == 0.0
    assert step_of(np.array([-128, 127], np.int8)) == 1.0
    assert step_of(np.zeros(8)) == 0.0
    # fewer than 16 steps: labels and masks
    assert step_of(np.array([3, 18], np.int8)) == 0.0
    assert step_of(np.array([3, 19], np.int8)) == 1.0
    assert step_of(np.array([0.0, 1.0] * 9)) == 0.0
    assert step_of(np.array([0.0, 0.5, 6.5] * 2)) == 0.0
    assert step_of(np.array([True, False] * 9)) == 0.0
    assert step_of(np.zeros(0, np.int8)) == 0.0


def test_other_inputs_are_others_and_as_valid():
    """Rows are exchanged; a constant input becomes random, indices stay those that were given."""
    ids, image = np.array([[3, 1, 7]]), np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    mask, ones, none = np.array([True, False]), np.ones((2, 2)), np.zeros((0, 3), np.float32)
    found = numerics.other_inputs([ids, image, mask, ones, none, np.array(5), np.float32(2)])
    np.testing.assert_array_equal(found[0], [[7, 3, 1]])
    np.testing.assert_array_equal(found[1], 0.75 * np.array([[[[2, 3], [0, 1]]]]))
    np.testing.assert_array_equal(found[2], [False, True])
    assert 0 <= found[3].min() < found[3].max() < 1
    assert (found[4].shape, found[5]) == ((0, 3), 5)
    assert all(isinstance(a, np.ndarray) for a in found)
    assert [a.dtype for a in found[:4]] == [a.dtype for a in (ids, image, mask, ones)]


def test_repeats_stop_after_three_when_they_agree():
    # Speeds 100, 100, 110: mean 103.3, deviation 4.7, variation 0.046 < 0.1.
    costs = np.array([1 / 100, 1 / 100, 1 / 110, 1.0, 1.0])
    rule = AdaptiveRepeats()
    assert len(repeats_made(rule, costs)) == 3
    assert mean_s(repeats_made(rule, costs)) == pytest.approx(1 / 100)  # the middle one of three
    # both reasons end the repeats
    assert len(repeats_made(AdaptiveRepeats(above_s=1 / 99), costs)) == 3
    assert len(repeats_made(AdaptiveRepeats(above_s=1 / 101), costs)) == 1


def test_repeats_go_on_while_they_vary_and_two_are_never_cut():
    # Three: 100, 50, 100 vary by 0.28. Four: 100, 50, 100, 100 by 0.25. Five without the fastest
    # and the slowest: 100, 100, 100 by 0.
    speeds = np.array([100, 50, 100, 100, 100, 100, 100.0])
    assert len(repeats_made(AdaptiveRepeats(), 1 / speeds)) == 5
    assert len(repeats_made(AdaptiveRepeats(cv_limit=0.27), 1 / speeds)) == 4
    assert len(repeats_made(AdaptiveRepeats(), 1 / speeds[:4])) == 4  # all there are
    for costs in ([2.0], [2.0, 4.0]):
        assert len(repeats_made(AdaptiveRepeats(), np.array(costs))) == len(costs)
        assert mean_s(repeats_made(AdaptiveRepeats(), np.array(costs))) == np.mean(costs)


def test_a_program_above_the_limit_has_one_repeat():
    rule = AdaptiveRepeats(cv_limit=None, above_s=2.0)
    assert len(repeats_made(rule, np.array([2.1, 1.0, 1.0]))) == 1
    assert len(repeats_made(rule, np.array([2.0, 9.0, 9.0]))) == 3  # the first is not above
    assert mean_s(repeats_made(rule, np.array([2.1, 1.0, 1.0]))) == 2.1
    assert len(repeats_made(AdaptiveRepeats(cv_limit=None), np.array([2.1, 1.0, 1.0]))) == 3
