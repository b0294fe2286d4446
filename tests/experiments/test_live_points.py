"""Points of live runs: the tables from them are those from the runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.live.live import (
    LiveRun,
    live_curves,
    p_rows,
    point_rows,
    read_points,
    result_rows,
    summarise,
    with_kept,
)
from pruner.errors import DataError
from pruner.files import write_table


def run_of(rng, workload, method, seed, first=1, budget_trials=60):
    trials = np.arange(first, 61)
    return LiveRun(
        part="rounds",
        target="cpu-epyc",
        workload=workload,
        budget_trials=budget_trials,
        method=method,
        seed=seed,
        trials=trials,
        elapsed_s=np.cumsum(rng.uniform(0.1, 2.0, len(trials))),
        best_s=np.minimum.accumulate(rng.lognormal(-7, 1, len(trials))),
        total_s=200.0 + seed,
        exploration_share=np.nan if method == "random" else 0.25,
        failed=seed,
    )


@pytest.fixture
def runs():
    rng = np.random.default_rng(0)
    return [
        run_of(rng, workload, method, seed, first=1 + 4 * (workload == "b"))
        for workload in ("a", "b")
        for method in ("ansor", "moa", "random")
        for seed in range(3)
    ]


def test_tables_from_points_are_those_from_the_runs(runs, tmp_path):
    write_table(tmp_path / "points.csv", point_rows(runs, 10), floats=".9g")
    again = read_points(tmp_path / "points.csv")
    rivals = ["ansor", "random"]
    for made in (
        lambda r: pd.DataFrame(result_rows(r, rivals)),
        lambda r: summarise(result_rows(r, rivals)),
        lambda r: pd.DataFrame(p_rows(r)),
        lambda r: pd.DataFrame(live_curves(r, 10)),
    ):
        pd.testing.assert_frame_equal(made(again), made(runs), rtol=1e-6)


def test_a_point_is_an_improvement_or_the_last_trial(runs):
    run = runs[0]
    rows = point_rows([run], 100)
    best = [row["best_s"] for row in rows]
    kept = best[:-1] if best[-1] == best[-2] else best
    assert (np.diff(kept) < 0).all()
    assert (rows[0]["trial"], rows[-1]["trial"]) == (1, 60)
    assert len(rows) < 20
    for row in rows:
        assert row["elapsed_s"] == run.elapsed_s[row["trial"] - 1]


def test_what_was_kept_gives_way_to_what_is_there(runs):
    rng = np.random.default_rng(1)
    anew, other = run_of(rng, "a", "ansor", 0), run_of(rng, "c", "ansor", 0)
    longer = run_of(rng, "a", "ansor", 0, budget_trials=120)
    found = with_kept([anew], [runs[0], other, longer])
    assert found == [anew, other, longer]


def test_runs_of_another_budget_are_not_compared(runs, tmp_path):
    rng = np.random.default_rng(1)
    longer = run_of(rng, "a", "ansor", 0, budget_trials=120)
    write_table(tmp_path / "points.csv", point_rows([*runs, longer], 10), floats=".9g")
    again = read_points(tmp_path / "points.csv")
    rows = pd.DataFrame(result_rows(again, ["ansor"]))
    pd.testing.assert_frame_equal(
        rows[rows.budget_trials == 60], pd.DataFrame(result_rows(runs, ["ansor"])), rtol=1e-6
    )
    assert (rows.budget_trials == 120).sum() == 1
    pd.testing.assert_frame_equal(
        pd.DataFrame(p_rows(again)), pd.DataFrame(p_rows(runs)), rtol=1e-6
    )


def test_areas_are_compared_over_the_trials_that_both_have(runs):
    """A run and its own end: a late start is neither a gain nor a loss."""
    names = ("trials", "elapsed_s", "best_s")
    late = replace(runs[0], method="late", **{name: getattr(runs[0], name)[20:] for name in names})
    assert [row["area_gain"] for row in p_rows([runs[0], late])] == [0.0, 0.0]


def test_targets_are_tested_each_and_all_together(runs):
    """As many pairs on both, so the gain over all is the mean; one target has no such row."""
    slowed = {"ansor": 1.0, "moa": 1.5, "random": 1.0}
    elsewhere = [
        replace(run, target="cpu-sse4", best_s=run.best_s * slowed[run.method]) for run in runs
    ]
    assert {row["target"] for row in p_rows(runs)} == {"cpu-epyc"}
    tests = pd.DataFrame(p_rows([*runs, *elsewhere])).set_index(["target", "method", "other"])
    here, there, every = (
        tests.loc[(target, "moa", "ansor")] for target in ("cpu-epyc", "cpu-sse4", "all")
    )
    assert (here.pairs, there.pairs, every.pairs) == (6, 6, 12)
    for name in ("final_gain", "area_gain"):
        assert there[name] == pytest.approx(here[name] - np.log(1.5))
        assert every[name] == pytest.approx((here[name] + there[name]) / 2)


def test_no_file_is_no_run_and_a_broken_one_is_told(runs, tmp_path):
    path = tmp_path / "points.csv"
    assert read_points(path) == []
    rows = point_rows(runs[:1], 10)
    write_table(path, [*rows, *rows])
    with pytest.raises(DataError, match="do not grow"):
        read_points(path)
    write_table(path, [{name: row[name] for name in row if name != "best_s"} for row in rows])
    with pytest.raises(DataError, match="no column best_s"):
        read_points(path)
    for name, value in (
        ("best_s", "fast"), ("best_s", ""), ("failed", ""), ("method", ""), ("seed", 0.5),
        ("trial", "x"), ("elapsed_s", "inf"),
    ):  # fmt: skip
        write_table(path, [*rows, rows[0] | {name: value}])
        with pytest.raises(DataError, match=rf"line {len(rows) + 2}: {name}="):
            read_points(path)
    for content in (b"", b"\xff\xfe\x00", b"a,b\n1\n1,2,3\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"points\.csv: no "):
            read_points(path)
