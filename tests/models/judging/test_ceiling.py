"""The noise ceiling, by hand and by simulation."""

import numpy as np
import pytest

from pruner.models.judging.judge import full_report, noise_ceiling
from pruner.models.judging.metrics import ScoredTask, pairwise_accuracy


def task(timed_s, name="a", latency_s=None):
    timed_s = np.array(timed_s, float)
    latency_s = np.nanmean(timed_s, axis=1) if latency_s is None else np.array(latency_s, float)
    return ScoredTask(name=name, latency_s=latency_s, score=-latency_s, timed_s=timed_s)


def test_by_hand():
    # First timing: the first program is best (1 s); the second timing says the second one, which
    # took 2 s the first time. The other way round: best 1.5 s, chosen 3 s. Pairs: (0,1) differ,
    # (0,2) and (1,2) agree.
    found = noise_ceiling([task([[1.0, 3.0], [2.0, 1.5], [4.0, 6.0]])])
    assert found["top1"] == pytest.approx((1 / 2 + 1.5 / 3) / 2)
    assert found["top5"] == 1.0
    assert found["pairwise_accuracy"] == pytest.approx(2 / 3)
    assert found["spread"] == pytest.approx(0.5)  # of 2.0, 0.25 and 0.5
    assert (found["num_tasks"], found["num_programs"]) == (1, 3)


def test_timings_that_repeat_have_no_ceiling_below_one():
    found = noise_ceiling([task([[1.0, 1.0], [2.0, 2.0]]), task([[3.0, 3.0], [2.0, 2.0]], "b")])
    assert {found[n] for n in ("top1", "top1_task_mean", "pairwise_accuracy")} == {1.0}
    assert found["spread"] == 0.0


def test_programs_timed_once_are_left_out():
    once = [[1.0, np.nan], [2.0, np.nan]]
    assert noise_ceiling([task(once, latency_s=[1, 2])]) is None
    assert noise_ceiling([ScoredTask(name="x", latency_s=np.ones(2), score=np.ones(2))]) is None
    mixed = noise_ceiling([task([*once, [1.0, 2.0], [2.0, 1.0]], latency_s=[1, 2, 3, 4])])
    assert mixed["num_programs"] == 2
    assert mixed["pairwise_accuracy"] == 0.0


def test_more_noise_lowers_it_and_the_true_order_is_above_it_within_the_bound():
    rng = np.random.default_rng(0)
    true_s = np.exp(rng.normal(0, 0.5, (40, 64)))
    before = 1.0
    for noise in (0.02, 0.1, 0.4):
        timed = true_s[:, :, None] * np.exp(rng.normal(0, noise, (*true_s.shape, 2)))
        found = noise_ceiling([task(one, f"t{n}") for n, one in enumerate(timed)])
        again = found["pairwise_accuracy"]
        assert again < before
        before = again
        assert found["spread"] == pytest.approx(noise * np.sqrt(2) * 0.6745, rel=0.15)
        perfect = [
            ScoredTask(name="x", latency_s=one[:, 0], score=-true)
            for one, true in zip(timed, true_s, strict=True)
        ]
        assert again < pairwise_accuracy(perfect) < (1 + np.sqrt(2 * again - 1)) / 2


def test_reports_have_it_beside_chance_where_it_is_known():
    known = full_report([task([[1.0, 3.0], [2.0, 1.5], [4.0, 6.0]])])
    assert known["ceiling"]["pairwise_accuracy"] == pytest.approx(2 / 3)
    assert "random" in known
    unknown = full_report([ScoredTask(name="x", latency_s=np.ones(2), score=np.ones(2))])
    assert "ceiling" not in unknown
