"""What is shown of a network's run, by hand."""

import io

import pytest
from rich.console import Console

from pruner.cli.shared import progress
from pruner.cli.shared.recipe_options import trees_counted
from pruner.cli.tuning.measured_run import (
    HEADINGS,
    Pace,
    budget_line,
    line,
    network_cells,
    network_display,
    say_operator,
)
from pruner.tune.run.budget import TuneBudget

ROW = {
    "task": "conv2d_1a", "trials": 60, "failures": 3, "best_latency_s": 1.25e-3,
    "estimate_s": 0.0243, "measured_share": 0.974, "seconds": 125.4,
}  # fmt: skip
BUDGET = TuneBudget(trials=300)


def test_the_cells_of_a_row_and_of_one_before_the_first_program():
    cells = network_cells(ROW, BUDGET, 65.0)
    assert cells == ["24.3 ms", "97%", "60/300", "3", "2:05", "1:05", "conv2d_1a 1.25 ms"]
    assert line(cells).startswith("network 24.3 ms  measured 97%  trials 60/300")
    assert len(cells) == len(HEADINGS)
    nothing = {"best_latency_s": float("inf"), "estimate_s": float("inf"), "measured_share": 0.0}
    cells = network_cells(ROW | nothing, BUDGET, None)
    assert [cells[0], *cells[-2:]] == ["-", "?", "conv2d_1a -"]


def test_time_left_is_the_pace_or_the_budget_of_seconds(capsys):
    pace = Pace(BUDGET)
    assert pace.left_s(10, 50.0) is None
    assert pace.left_s(60, 150.0) == pytest.approx(240 * 100 / 50)  # 2 s a trial
    timed = Pace(TuneBudget(trials=300, seconds=200.0))
    assert timed.left_s(10, 50.0) == 150.0
    assert timed.left_s(60, 150.0) == 50.0
    assert timed.left_s(70, 230.0) == 0.0
    budget = TuneBudget(trials=64)
    pace = Pace(budget)
    for trials, seconds in ((16, 10.0), (32, 20.0)):
        row = {"task": "matmul", "trials": trials, "best_latency_s": 1e-3, "failed": 0}
        say_operator(budget, pace, {**row, "seconds": seconds})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "[16/64] matmul: best 1 ms  failed 0  10.0 s"
    assert second.endswith("20.0 s  left 0:20")  # 32 more at 16 in 10 s


def test_what_the_seconds_of_a_network_cover_is_told():
    told = budget_line(TuneBudget(trials=40, seconds=60.0), build=True)
    assert told.startswith("budget: 40 programs or 60 s of drafting, measuring and learning; ")
    assert told.endswith("building, checking and timing the network comes after it")
    assert budget_line(TuneBudget(trials=40), build=False).endswith("the import is not in it")


def test_a_log_gets_a_line_a_round_and_a_terminal_one_table(capsys):
    with network_display(BUDGET, Console(file=io.StringIO(), force_terminal=False)) as show:
        show(ROW)
        show(ROW)
    assert capsys.readouterr().err.count("network 24.3 ms") == 2
    out = io.StringIO()
    with network_display(BUDGET, Console(file=out, force_terminal=True, width=120)) as show:
        show(ROW)
    assert "24.3 ms" in out.getvalue()
    assert "conv2d_1a 1.25 ms" in out.getvalue()


def test_a_log_gets_a_line_with_an_estimate_after_five_seconds(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 10.0, 13.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.counting("trees") as count:
        for done in (1, 2, 3, 10):
            count(done, 10)
    # 2 of 10 in 10 s: 8 more take 40 s; then silence for less than five seconds; then the end
    told = ["trees: 2 of 10, 5 s each, about 40 s left"]
    assert capsys.readouterr().err.splitlines() == told
    assert progress.rate(2.5) == "2.5/s"


def test_rounds_of_trees_open_a_display_only_once_there_is_one(monkeypatch):
    opened, real = [], progress.live_bar
    monkeypatch.setattr(progress, "live_bar", lambda: opened.append(1) or real())
    with trees_counted("trees"):
        pass
    assert not opened
    with trees_counted("trees") as grown:
        grown(1, 2)
        grown(2, 2)
    assert len(opened) == 1
