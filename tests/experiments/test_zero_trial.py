"""The best of k drafted programs: by hand, and the committed table beside its sources."""

import numpy as np
import pytest

from experiments.live.live import LiveRun
from experiments.zero_trial.run import (
    best_of,
    first_best,
    from_networks,
    from_points,
    from_tune,
    network_best,
    rows_of,
    summary_rows,
)
from pruner.files import read_table
from tests.paths import REPOSITORY
from tests.tune.run.test_journal import trial

FOLDER = REPOSITORY / "experiments" / "zero_trial"


def live_run(first, best_s):
    return LiveRun(
        part="rounds", target="t", workload="w", budget_trials=9, method="m", seed=0,
        trials=np.arange(first, first + len(best_s)), elapsed_s=np.zeros(len(best_s)),
        best_s=np.array(best_s), total_s=1.0, exploration_share=0.0, failed=0,
    )  # fmt: skip


def test_the_best_after_k_trials():
    assert best_of(live_run(1, [4.0] * 7 + [3.0] + [2.0] * 10)) == {1: 4.0, 8: 3.0, 16: 2.0}
    # until the second trial nothing ran
    assert best_of(live_run(2, [4.0] * 6 + [3.0])) == {8: 3.0, 16: 3.0}


def test_only_the_first_batch_was_drafted_without_results():
    rows = [trial(n, [9.0 - n], batch=1) for n in range(1, 9)]
    rows += [trial(n, [0.5], batch=2) for n in range(9, 20)]
    assert first_best(rows) == {1: 8.0, 8: 1.0}
    assert first_best(rows, batches=None) == {1: 8.0, 8: 1.0, 16: 0.5}
    crashed = [trial(1, [], error="run_crash"), *rows[1:]]
    assert first_best(crashed) == {8: 1.0}


def test_a_network_is_the_sum_of_its_tasks():
    runs = {"a": [trial(1, [4.0]), trial(2, [1.0])], "b": [trial(3, [2.0])]}
    assert network_best(runs, {"a": 3.0, "b": 1.0}) == {1: 14.0, 8: 5.0, 16: 5.0}
    assert network_best(runs, {"a": 3.0, "c": 1.0}) == {}


def test_a_mean_over_workloads_is_geometric():
    rows = [
        row
        for workload, seed, over in (("a", 0, 1.0), ("a", 1, 4.0), ("b", 0, 8.0))
        for row in rows_of("s", "d", workload, seed, drafted_s={1: over}, tuned_s=1.0, trials=9,
                           random_s={1: 2 * over})
    ]  # fmt: skip
    (found,) = summary_rows(rows)
    assert (found["workloads"], found["seeds"], found["worst"]) == (2, 2, 8.0)
    assert found["drafted_over_tuned"] == pytest.approx(4.0)  # of 2 and 8
    assert found["random_over_tuned"] == pytest.approx(8.0)


def test_the_table_has_what_its_sources_have():
    known = {
        tuple(row[name] for name in ("source", "workload", "device", "seed", "k")): row
        for row in read_table(FOLDER / "results.csv")
    }
    rows = [*from_points("live"), *from_points("live_systems"), *from_tune(), *from_networks()]
    assert len(rows) > 40
    for row in rows:
        key = tuple(str(row[name]) for name in ("source", "workload", "device", "seed", "k"))
        assert float(known[key]["drafted_over_tuned"]) == pytest.approx(
            row["drafted_over_tuned"], rel=1e-5
        )
