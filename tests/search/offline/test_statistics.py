"""Tests, intervals and censored times against hand arithmetic."""

import numpy as np
import pytest

from pruner.search.offline.adaptation_run import (
    Reach,
    bootstrap_interval,
    first_reach,
    restricted_mean,
    sign_flip_p,
)


def reached(*times):
    return [Reach(at=t, reached=True) for t in times]


def test_sign_flips_are_counted():
    # Sums of +-1 +-2 +-3: only +6 reaches 6; +6, +4 (-1) reach 4.
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == 1 / 8
    assert sign_flip_p(np.array([-1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_p(np.array([-1.0, -2.0, -3.0])) == 1.0
    assert sign_flip_p(np.zeros(4)) == 1.0


def test_sampled_sign_flips_agree_with_the_normal_approximation():
    differences = np.random.default_rng(0).normal(0.2, 1.0, 40)
    z = differences.sum() / np.sqrt((differences**2).sum())
    from math import erfc

    assert sign_flip_p(differences) == pytest.approx(erfc(z / np.sqrt(2)) / 2, abs=0.01)


def test_bootstrap_of_a_mean_has_the_textbook_width():
    values = np.random.default_rng(1).normal(0, 1, 400)
    low, high = bootstrap_interval(400, lambda rows: float(values[rows].mean()))
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)
    assert bootstrap_interval(5, lambda rows: 3.0) == (3.0, 3.0)


def test_first_reach_reads_a_curve():
    best, at = np.array([5.0, 3.0, 3.0, 2.0]), np.array([10.0, 20.0, 30.0, 40.0])
    assert first_reach(best, at, 3.0) == Reach(at=20.0, reached=True)
    assert first_reach(best, at, 1.0) == Reach(at=40.0, reached=False)


def test_restricted_mean_without_censoring_is_the_mean():
    assert restricted_mean(reached(1, 2, 6), 10) == pytest.approx((1 + 2 + 6) / 3)
    assert restricted_mean(reached(1, 2, 16), 10) == pytest.approx((1 + 2 + 10) / 3)


def test_censored_at_the_horizon_counts_the_whole_horizon():
    runs = [*reached(2, 4), Reach(at=10, reached=False)]
    assert restricted_mean(runs, 10) == pytest.approx((2 + 4 + 10) / 3)


def test_kaplan_meier_by_hand():
    # 2 reached (4 at risk): S = 3/4; 3 stopped; 5 reached (2 at risk): S = 3/8; 10 reached.
    runs = [*reached(2, 5, 10), Reach(at=3, reached=False)]
    assert restricted_mean(runs, 8) == pytest.approx(2 * 1 + 3 * 3 / 4 + 3 * 3 / 8)


def test_leaving_the_censored_out_would_flatter():
    runs = [*reached(2, 4), Reach(at=9, reached=False)]
    assert restricted_mean(runs, 9) > np.mean([2, 4])
