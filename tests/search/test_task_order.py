"""Task order by hand arithmetic, and the stopwatch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pruner.errors import PrunerError
from pruner.search.task_order import (
    TaskProgress,
    gain,
    next_task,
    round_size,
    stays_behind,
)
from pruner.tune.phases import Phases


def progress(best_s, weight=1.0, flops=0.0, **more):
    return TaskProgress(weight=weight, flops=flops, best_s=best_s, **more)


def spent(curves, batches, operators=None, flops=None):
    """Batches that every task gets; ``curves[i](n)`` is the best latency of task i after n."""
    found = [
        progress([], flops=(flops or [1e9] * len(curves))[i], operator=(operators or [None] * 9)[i])
        for i in range(len(curves))
    ]
    for _ in range(batches):
        i = next_task("gradient", found)
        best_s = [*found[i].best_s, curves[i](len(found[i].best_s) + 1)]
        found[i] = replace(found[i], best_s=best_s)
        if stays_behind(found, i):
            found[i] = replace(found[i], alone=True)
    return [len(task.best_s) for task in found]


def test_every_task_is_begun_before_any_is_continued():
    tasks = [progress([1.0]), progress([]), progress([])]
    assert next_task("gradient", tasks) == 1
    assert next_task("round_robin", tasks) == 1


def test_round_robin_takes_the_task_with_fewest_batches_that_is_not_exhausted():
    tasks = [progress([1.0, 1.0]), progress([1.0], exhausted=True), progress([1.0, 1.0])]
    assert next_task("round_robin", tasks) == 0
    assert next_task("round_robin", [progress([1.0], exhausted=True)]) is None


def test_the_gain_is_the_slope_and_an_optimistic_guess():
    # slope (8 - 4) / 2 = 2 over two batches; guess 4 / 3 batches; twice a model
    task = progress([8.0, 6.0, 4.0], weight=2.0)
    assert gain([task], 0) == pytest.approx(2 * (0.2 * 2 + 0.8 * 4 / 3))


def test_a_task_that_computes_slowly_may_hope_for_the_speed_of_similar_ones():
    fast = progress([1.0, 1.0], flops=100.0, operator="matmul")  # 100 a second
    # 10 a second; at half of 100: 2 s instead of 10
    slow = progress([10.0, 10.0], flops=100.0, operator="matmul")
    assert gain([fast, slow], 1) == pytest.approx(0.8 * (10 - 2))
    assert next_task("gradient", [fast, slow]) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"operator": "softmax"},  # another operator
        {"operator": None},  # a program that does not say
        {"operator": "matmul", "flops": 300.0},  # log(301) / log(1.618) is 11.9, of 101 it is 9.6
        {"operator": "matmul", "alone": True},  # was found to be like no other
    ],
)
def test_other_tasks_promise_nothing(other):
    task = progress([10.0, 10.0], flops=100.0, operator="matmul")
    fast = progress([1.0, 1.0], **{"flops": 100.0, **other})
    assert gain([fast, task], 1) == pytest.approx(0.8 * 10 / 2)


def test_flat_tasks_get_batches_in_proportion_to_their_latency():
    """The gain after n batches is 0.8 latency / n: the 58 largest of both lists are spent."""
    flat = [1e-3, 0.2e-3]
    ranked = sorted(((s / n, i) for i, s in enumerate(flat) for n in range(1, 61)), reverse=True)
    expected = [1 + sum(i == task for _, i in ranked[:58]) for task in (0, 1)]
    curves = [lambda _, s=s: s for s in flat]
    assert spent(curves, 60) == expected == [50, 10]
    # a softmax that does a thousandth of the arithmetic is not hoped to be as fast as a matmul
    assert spent(curves, 60, ["matmul", "softmax"], [2e9, 2e6]) == expected


def test_a_task_that_still_improves_is_preferred_to_a_flat_one():
    improving, flat = spent([lambda n: 1e-3 * 0.8**n + 1e-4, lambda _: 3e-4], 12)
    assert improving > flat
    # once it is flat, too, at a third of the other's latency, the other catches up
    improving, flat = spent([lambda n: 1e-3 * 0.8**n + 1e-4, lambda _: 3e-4], 62)
    assert flat > improving


def test_a_task_that_stays_behind_leaves_its_group():
    """At 10 ms instead of 1 ms it hopes for 2 ms until it is 6 batches ahead; then it is alone."""
    curves = [lambda _: 1e-3, lambda _: 10e-3]
    slow = progress([10e-3] * 7, flops=1e9, operator="matmul")
    fast = progress([1e-3], flops=1e9, operator="matmul")
    assert stays_behind([fast, slow], 1)
    assert not stays_behind([fast, replace(slow, best_s=[10e-3] * 6)], 1)  # not for long
    assert not stays_behind([fast, replace(slow, best_s=[2e-3] * 7)], 1)  # within the factor
    assert not stays_behind([fast, replace(slow, operator="conv2d")], 1)
    assert not stays_behind([replace(fast, best_s=[1e-3] * 9), slow], 0)  # the fastest
    # from then on both get batches in proportion to their latency, 10 to 1
    assert spent(curves, 66, ["matmul", "matmul"]) == spent(curves, 66) == [6, 60]
    # as long as it hopes, the other one gets nothing
    assert spent(curves, 8, ["matmul", "matmul"]) == [1, 7]


def test_a_task_that_never_runs_does_not_eat_the_budget():
    curves = [lambda _: 1e-3, lambda _: float("inf"), lambda _: 1e-3]
    counts = spent(curves, 31)
    assert max(counts) - min(counts) <= 1  # and it is not given up
    assert spent(curves, 6) == [1, 4, 1]  # at first it is the most urgent


def test_the_first_rounds_are_small_enough_for_every_task():
    assert round_size(16, 64, 1, first=True) == 16
    assert round_size(16, 1000, 20, first=True) == 10
    assert round_size(16, 1000, 20, first=False) == 16
    assert round_size(16, 30, 20, first=True) == 1
    assert round_size(16, 400, 20, first=True) == 6  # 0.3 of 400 over 20 tasks
    assert round_size(16, 100, 20, first=True) == 4  # not less than four ...
    assert round_size(16, 60, 20, first=True) == 3  # ... where there are as many
    assert round_size(6, 30, 2, first=True) == 4


def test_a_task_without_a_program_that_runs_is_the_most_urgent():
    assert next_task("gradient", [progress([9.0]), progress([float("inf")])]) == 1


def test_first_results_that_are_awaited_make_no_task_urgent():
    """The batch of the last task is being measured when the next one is chosen: 3 s of one batch
    give 2.4, 4 s 3.2, what is awaited nothing; once it has failed it is the most urgent."""
    begun = [progress([3.0]), progress([4.0])]
    latest = progress([float("inf")], weight=9.0)
    assert next_task("gradient", [*begun, replace(latest, awaited=True)]) == 1
    assert next_task("gradient", [*begun, latest]) == 2
    # known from earlier batches, it is as urgent as they say: 9 / 2 batches
    assert next_task("gradient", [*begun, progress([9.0, 9.0], awaited=True)]) == 2
    assert next_task("gradient", [replace(latest, awaited=True)]) == 0  # there is no other


def test_rounds_go_where_latencies_say_among_the_convolutions_of_a_network():
    """Twice 1 ms, 0.8 ms of half the arithmetic at half the speed, and 0.1 ms, all flat.

    After n rounds one more gains 1.6 / n, 0.64 / n and 0.08 / n ms: of eight rounds they get five,
    two and one, whether they have names or not.
    """
    curves = [lambda _: 2e-3, lambda _: 0.8e-3, lambda _: 0.1e-3]
    assert spent(curves, 8) == [5, 2, 1]
    kinds, flops = ["conv2d_add_relu"] * 2 + ["conv2d_add"], [2.3e8, 1.15e8, 1.3e7]
    assert spent(curves, 8, kinds, flops) == [5, 2, 1]


def test_an_unknown_order_is_told():
    with pytest.raises(PrunerError, match="gradient, round_robin"):
        next_task("best", [progress([])])


def test_inner_phases_pause_outer_ones_and_all_add_up(monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("pruner.tune.phases.time", clock)

    def passes(seconds):
        now[0] += seconds

    phases = Phases()
    with phases.time("verify"):
        passes(0.5)
        with phases.time("sample"):
            passes(4.0)
        passes(0.25)
    passes(2.0)
    seconds = phases.seconds()
    assert (seconds["verify"], seconds["sample"], seconds["idle"]) == (0.75, 4.0, 2.0)
    assert sum(seconds.values()) == phases.elapsed_s == 6.75
    resumed = Phases()
    resumed.add(seconds)
    passes(1.0)
    assert resumed.seconds()["sample"] == 4.0
    assert resumed.elapsed_s == 7.75
