"""Task order by hand arithmetic, the stopwatch, and the journal's torn line."""

import time

import pytest

from pruner.errors import PrunerError
from pruner.tune.phases import Phases
from pruner.tune.run.journal import Journal, Trial, read_trials
from pruner.tune.run.task_order import GradientSettings, TaskProgress, gain, next_task

ALPHA_HALF = GradientSettings(alpha=0.5, beta=2.0, window=2)


def progress(best_s, weight=1.0, flops=0.0, exhausted=False):
    return TaskProgress(weight=weight, flops=flops, best_s=best_s, exhausted=exhausted)


def test_every_task_is_begun_before_any_is_continued():
    tasks = [progress([1.0]), progress([]), progress([])]
    assert next_task("gradient", tasks) == 1
    assert next_task("round_robin", tasks) == 1


def test_round_robin_takes_the_task_with_fewest_batches_that_is_not_exhausted():
    tasks = [progress([1.0, 1.0]), progress([1.0], exhausted=True), progress([1.0, 1.0])]
    assert next_task("round_robin", tasks) == 0
    assert next_task("round_robin", [progress([1.0], exhausted=True)]) is None


def test_the_gain_is_the_slope_and_an_optimistic_guess():
    # slope (8 - 4) / 2 = 2 over two batches; guess 4 / 3 batches; halves of both, twice a model
    task = progress([8.0, 6.0, 4.0], weight=2.0)
    assert gain([task], 0, ALPHA_HALF) == pytest.approx(2 * (0.5 * 2 + 0.5 * 4 / 3))


def test_a_task_that_computes_slowly_may_hope_for_the_speed_of_the_others():
    fast = progress([1.0, 1.0], flops=100.0)  # 100 a second
    slow = progress([10.0, 10.0], flops=100.0)  # 10 a second; at half of 100: 2 s instead of 10
    assert gain([fast, slow], 1, ALPHA_HALF) == pytest.approx(0.5 * (10 - 2))
    assert next_task("gradient", [fast, slow]) == 1


def test_a_task_without_a_program_that_runs_is_the_most_urgent():
    assert next_task("gradient", [progress([9.0]), progress([float("inf")])]) == 1


def test_an_unknown_order_is_told():
    with pytest.raises(PrunerError, match="gradient, round_robin"):
        next_task("best", [progress([])])


def test_inner_phases_pause_outer_ones_and_all_add_up():
    phases = Phases()
    with phases.time("verify"):
        with phases.time("sample"):
            time.sleep(0.03)
        time.sleep(0.01)
    time.sleep(0.02)
    seconds = phases.seconds()
    assert 0.03 <= seconds["sample"] < 0.05
    assert 0.01 <= seconds["verify"] < 0.03
    assert seconds["idle"] >= 0.02
    assert sum(seconds.values()) == pytest.approx(phases.elapsed_s, rel=0.05)
    resumed = Phases()
    resumed.add(seconds)
    assert resumed.seconds()["sample"] == seconds["sample"]
    assert resumed.elapsed_s >= sum(seconds.values())


def trial(number, costs_s):
    return Trial(
        task="t", trial=number, batch=1, position=number, space=0, decisions=[4, 2],
        costs_s=costs_s, error=None, message="", build_s=0.1, run_s=0.2, elapsed_s=1.0,
        timestamp=0.0,
    )  # fmt: skip


def test_a_torn_line_is_cut_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "trials.jsonl"
    journal = Journal(path)
    journal.append(trial(1, [1.0, 3.0]))
    journal.append(trial(2, [2.0]))
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"task": "t", "tri')
    again = Journal(path)
    assert [row.trial for row in again.rows] == [1, 2]
    assert again.rows[0].latency_s == 2.0
    again.append(trial(3, [1.0]))
    again.close()
    assert [row.trial for row in read_trials(path)] == [1, 2, 3]
