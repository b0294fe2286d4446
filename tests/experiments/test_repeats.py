"""Fewer repeats on recorded trials: against a plain loop and by hand, and the committed tables."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.repeats import run
from experiments.repeats.run import (
    ALL,
    CHOOSE,
    EACH,
    FEWER,
    JUDGE,
    chosen_factor,
    gains,
    held_out,
    simulate,
    summary_rows,
    task_rows,
    timing_s,
)
from pruner.errors import PrunerError
from pruner.files import read_table
from pruner.tune.run.finalists import FINALISTS_FILE
from pruner.tune.run.journal import JOURNAL_FILE
from tests.paths import REPOSITORY
from tests.tune.run.test_journal import trial as row_of
from tests.tune.run.test_journal import written as journal

FOLDER = REPOSITORY / "experiments" / "repeats"


def plain(costs_s, order, factor, renewed):
    """One order, a program after the other; who stops, and the choice."""
    labels, stopped, known_s = {}, [], np.inf
    for trial, program in enumerate(order):
        if trial % renewed == 0:
            known_s = min(labels.values(), default=np.inf)
        stopped.append(bool(costs_s[program][0] > factor * known_s))
        labels[program] = costs_s[program][0] if stopped[-1] else np.mean(costs_s[program])
    return min(labels, key=labels.get), stopped


@pytest.mark.parametrize("renewed", [1, 4])
@pytest.mark.parametrize("factor", [1.0, 1.3, np.inf])
def test_all_orders_together_are_each_alone(factor, renewed):
    rng = np.random.default_rng(0)
    costs_s = np.exp(rng.normal(0, 0.3, 20))[:, None] * rng.uniform(1, 1.2, (20, 3))
    orders = np.argsort(rng.random((9, 20)), axis=1)[:, :12]
    found = simulate(costs_s, orders, factor, renewed)
    for row, order in enumerate(orders):
        choice, stopped = plain(costs_s, order.tolist(), factor, renewed)
        assert found.chosen[row] == choice
        assert found.stopped[row].tolist() == stopped
    assert found.stopped.any() == (factor < np.inf)


def test_a_bad_first_repeat_may_cost_the_best_program():
    # The second is stopped at 1.6 of 1.0. The third has a bad first repeat and is the best: stopped
    # too, so the choice stays at the first.
    costs_s = np.array([[1.0, 1.0], [1.6, 1.6], [1.6, 0.1]])
    orders = np.array([[0, 1, 2]])
    assert simulate(costs_s, orders, np.inf).chosen == [2]
    found = simulate(costs_s, orders, 1.5)
    assert found.chosen == [0]
    assert found.stopped.tolist() == [[False, True, True]]
    true_s = np.array([1.0, 2.0, 0.8])
    row = next(row for row in task_rows(costs_s, true_s, orders, 0.0) if row["factor"] == 1.5)
    assert row["changed"] == 1
    assert row["regret"] == pytest.approx(1.0 / 0.8 - 1)


def test_seconds_of_timing_by_hand():
    # Repeats last .5 s at least; the first program is known to nobody: one call, with one run more.
    costs_s = np.array([[1.0, 2.0], [0.1, 0.1], [4.0, 4.0]])
    orders = np.array([[0, 1, 2]])
    found = simulate(costs_s, orders, 2.0)
    assert found.stopped.tolist() == [[False, False, True]]
    whole = (3.0 + 1.0) + (1.0 + 0.1) + (8.0 + 4.0)
    assert timing_s(costs_s, orders, None, 0.5) == pytest.approx(whole)
    ruled = (3.0 + 1.0) + (1.0 + 0.2) + (4.0 + 4.0)
    assert timing_s(costs_s, orders, found, 0.5) == pytest.approx(ruled)


def test_what_timing_again_can_gain_by_hand():
    measured_s = np.array([[1.0, 1.04, 1.2, 1.01, 1.02, 1.03]])
    true_s = np.array([[1.1, 0.2, 0.1, 1.0, 1.05, 1.2]])  # the second is near, but four are nearer
    assert gains(measured_s, true_s) == pytest.approx([1.1 / 1.0 - 1])


def row(factor, half, regret, saved):
    return {
        "set": "all", "half": half, "factor": factor, "renewed": EACH, "saved": saved,
        "regret": regret, "worst_regret": regret,
    }  # fmt: skip


def test_the_factor_saves_most_of_those_with_little_regret_on_its_half():
    rows = [row(1.1, CHOOSE, 0.002, 0.5), row(1.3, CHOOSE, 0.001, 0.4), row(2.0, CHOOSE, 0, 0.3),
            row(1.1, JUDGE, 0, 0.5)]  # fmt: skip
    assert chosen_factor(rows) == 1.3
    assert chosen_factor(rows[:1]) is None


def test_the_summary_is_that_of_the_rows():
    found = summary_rows(read_table(FOLDER / "results.csv"))
    saved = read_table(FOLDER / "summary.csv")
    assert len(found) == len(saved)
    for one, other in zip(found, saved, strict=True):
        for name, value in one.items():
            if name in ("set", "half") or value is None:
                assert other[name] == ("" if value is None else value)
            else:
                # results.csv has four digits
                wanted = pytest.approx(float(other[name]), rel=0.01, abs=1e-4, nan_ok=True)
                assert float(value) == wanted, name


def test_live_runs_are_pairs():
    rows = read_table(FOLDER / "live.csv")
    pairs = {(row["operator"], row["seed"]) for row in rows}
    assert {(*pair, way) for pair in pairs for way in (ALL, FEWER)} == {
        (row["operator"], row["seed"], row["way"]) for row in rows
    }
    assert all(float(row["over_all"]) == 1 for row in rows if row["way"] == ALL)


def test_a_live_run_is_named_by_its_options_and_has_a_factor_of_the_tables():
    ways = (run.Options(), run.Options(factor=1.5), run.Options(trials=8))
    assert len({run.cell(options, "matmul", FEWER, 0) for options in ways}) == 3
    assert run.cell(ways[0], "matmul", ALL, 0) == run.cell(ways[1], "matmul", ALL, 0)
    with pytest.raises(PrunerError, match=r"factor=1\.25: not in the tables; known: 1, "):
        run.run(run.Options(live=True, factor=1.25))


def test_rows_of_runs_whose_folders_are_elsewhere_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SETS", {})
    for name, cost_s in (("first", 1.0), ("second", 1.0), ("first", 2.0)):
        journal(tmp_path / name / name / JOURNAL_FILE, row_of(int(cost_s), [cost_s] * 3))
        run.run(run.Options(runs=str(tmp_path / name), out=str(tmp_path)))
    tasks = [row["task"] for row in read_table(tmp_path / "results.csv") if row["factor"] == "1"]
    assert tasks == ["first", "first", "second", "second"]  # for each way of renewing


def test_one_half_of_the_turns_chooses_and_the_other_judges():
    """By hand: a program that is fast in the even turns alone gains nothing."""
    steady, lucky = [2.0] * 4, [1.0, 3.0, 1.0, 3.0]
    # even turns choose the lucky program, which takes 3 / 2 in the others; odd ones the steady one
    assert held_out(np.array([steady, lucky]), 0) == pytest.approx(np.sqrt(1.5))
    assert held_out(np.array([steady, lucky]), 1) == pytest.approx(np.sqrt(2.0))
    better = [[2.0] * 6, [1.5, 1.6, 1.4, 1.5, 1.6, 1.4]]
    assert held_out(np.array(better), 0) == pytest.approx(np.sqrt(0.75 * 0.75), rel=0.05)
    assert held_out(np.array(better), 1) == pytest.approx(1.0)


def test_a_row_a_task_of_a_network_with_finalists(tmp_path, monkeypatch):
    """By hand; an operator in the same folder and a best program that failed have no row."""
    tasks = [SimpleNamespace(name=name, weight=3.0) for name in ("t", "u")]
    monkeypatch.setattr(run, "forms", lambda folder: {"original": folder})
    monkeypatch.setattr(run, "read_tasks", lambda _path: tasks)
    made = [row_of(n, [1.0 + n], record="[]", task="tuv"[n % 3]) for n in range(6)]
    journal(tmp_path / JOURNAL_FILE, *made)
    turns = {"costs_s": [[2.0] * 4, [1.0] * 4], "checked": True}
    found = {
        "t": {"tried": [0, 3], "trials": [0, 3], **turns},
        "u": {"tried": [1, 4, 7], "trials": [4, 7], **turns},
        "v": {"tried": [2, 5], "trials": [2, 5], **turns},
    }
    (tmp_path / FINALISTS_FILE).write_text(json.dumps(found), encoding="utf-8")
    (row,) = run.network_rows(tmp_path)
    expected = {"task": "t", "weight": 3.0, "measured": 2, "programs": 2, "turns": 4}
    assert expected.items() <= row.items()
    assert (row["search_ms"], row["again_ms"], row["chosen"], row["first"]) == (1e3, 2e3, 3, 0)
    assert row["over_first"] == pytest.approx(0.5)
