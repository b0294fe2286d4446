"""The time of all tasks together, by hand; when it counts as settled."""

import pytest

from pruner.search.task_order import Estimate, TaskProgress, has_settled


def task(weight, flops, *best_s):
    return weight, flops, TaskProgress(weight=weight, flops=flops, best_s=best_s).latest_s


def test_tasks_count_as_often_as_they_are_called():
    found = Estimate.of([task(2.0, 100.0, 9.0, 3.0), task(1.0, 50.0, 4.0)])
    assert (found.latency_s, found.measured_share) == (2 * 3 + 4, 1.0)


def test_what_was_not_measured_counts_as_fast_as_what_was():
    failed = task(1.0, 60.0, float("inf"))
    found = Estimate.of([task(2.0, 100.0, 3.0), failed, task(4.0, 10.0)])
    # 200 operations in 6 s; 60 + 40 more at that speed: 3 s
    assert found.latency_s == pytest.approx(6 + 3)
    assert found.measured_share == pytest.approx(200 / 300)


def test_nothing_is_known_of_what_never_ran():
    found = Estimate.of([task(1.0, 10.0)])
    assert (found.latency_s, found.measured_share) == (float("inf"), 0.0)


def test_tasks_without_arithmetic_need_a_measurement():
    assert Estimate.of([task(1.0, 0.0, 2.0)]).latency_s == 2.0
    assert Estimate.of([task(1.0, 0.0, 2.0), task(1.0, 0.0)]).latency_s == float("inf")


@pytest.mark.parametrize(
    ("latency_s", "settled"),
    [
        ([10.0, 9.0, 8.0, 7.95], False),  # 8 of 10 over the last three
        ([10.0, 8.0, 8.0, 7.95, 7.93], True),  # 0.07 of 8
        ([8.0, 8.0, 8.0, 9.0], False),  # a first program of a slower task
        ([8.0, 8.0, 8.0], False),  # two rounds since the first, not three
    ],
)
def test_settled_is_less_than_a_hundredth_in_three_rounds(latency_s, settled):
    assert has_settled(latency_s, 3, 0.01) == settled
    assert not has_settled(latency_s, None, 0.01)
