"""When repeating a measurement stops, by hand."""

import numpy as np
import pytest

from pruner.tune.measure.repeats import AdaptiveRepeats


def test_repeats_stop_after_three_when_they_agree():
    # Speeds 100, 100, 110: mean 103.3, deviation 4.7, variation 0.046 < 0.1.
    costs = np.array([1 / 100, 1 / 100, 1 / 110, 1.0, 1.0])
    rule = AdaptiveRepeats()
    assert rule.num_repeats(costs) == 3
    assert rule.latency_s(costs) == pytest.approx(1 / 100)  # the middle one of three


def test_repeats_go_on_while_they_vary():
    # Three: 100, 50, 100 vary by 0.28. Four: 100, 50, 100, 100 by 0.25. Five without the fastest
    # and the slowest: 100, 100, 100 by 0.
    speeds = np.array([100, 50, 100, 100, 100, 100, 100.0])
    assert AdaptiveRepeats().num_repeats(1 / speeds) == 5
    assert AdaptiveRepeats(cv_limit=0.27).num_repeats(1 / speeds) == 4
    assert AdaptiveRepeats().num_repeats(1 / speeds[:4]) == 4  # all there are


def test_two_repeats_or_one_are_never_cut():
    for costs in ([2.0], [2.0, 4.0]):
        assert AdaptiveRepeats().num_repeats(np.array(costs)) == len(costs)
        assert AdaptiveRepeats().latency_s(np.array(costs)) == np.mean(costs)


def test_a_program_above_the_limit_has_one_repeat():
    rule = AdaptiveRepeats(cv_limit=None, above_s=2.0)
    assert rule.num_repeats(np.array([2.1, 1.0, 1.0])) == 1
    assert rule.num_repeats(np.array([2.0, 9.0, 9.0])) == 3  # the first is not above: all are made
    assert rule.latency_s(np.array([2.1, 1.0, 1.0])) == 2.1
    assert AdaptiveRepeats(cv_limit=None).num_repeats(np.array([2.1, 1.0, 1.0])) == 3


def test_both_reasons_end_the_repeats():
    costs = np.array([1 / 100, 1 / 100, 1 / 110, 1.0, 1.0])  # agree after three, see above
    assert AdaptiveRepeats(above_s=1 / 99).num_repeats(costs) == 3
    assert AdaptiveRepeats(above_s=1 / 101).num_repeats(costs) == 1
